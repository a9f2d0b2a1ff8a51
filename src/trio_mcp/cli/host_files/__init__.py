"""The configuration files in which hosts keep their servers."""
