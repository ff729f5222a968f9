"""Values of the world outside as columns of a declared type: exactly, or with an error that names them."""
