"""The report of runs: one HTML file that needs nothing but a browser."""
