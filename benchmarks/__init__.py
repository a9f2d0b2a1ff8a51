"""What trio-mcp costs, measured from outside, beside a floor and its peers: ``python -m benchmarks``. See README.md."""
