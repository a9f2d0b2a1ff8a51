"""JSON Schema: values checked against the schemas that authors and peers give."""
