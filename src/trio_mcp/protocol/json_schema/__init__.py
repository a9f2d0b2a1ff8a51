"""JSON Schema: values checked against the schemas of authors and peers."""
