"""The configuration files in which programs that start servers keep them."""
