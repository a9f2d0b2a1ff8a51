"""The server API: what is offered, and the context its handlers see."""
