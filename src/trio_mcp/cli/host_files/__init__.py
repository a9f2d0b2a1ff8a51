"""The files in which programs that start servers keep which ones."""
