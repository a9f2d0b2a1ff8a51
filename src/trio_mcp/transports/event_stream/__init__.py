"""Server-sent events (WHATWG HTML, section 9.2) without waiting and without clocks: JSON lines become events, bytes
become events again, and a log keeps events for clients that come back."""
