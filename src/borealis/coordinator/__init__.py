"""The coordinator: it knows what runs where and sees to it that it does. No tuple passes through it."""
