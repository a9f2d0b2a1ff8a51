"""The fleet: what several processes of one server share, and how they reach each other."""
