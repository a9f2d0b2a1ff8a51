"""Server-sent events (WHATWG HTML, section 9.2) without waiting and without clocks: JSON lines become events, and bytes
become events again."""
