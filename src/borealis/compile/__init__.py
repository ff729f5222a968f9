"""From a diagram to a program: typed by Spark, lowered to kernels, one file a box."""
