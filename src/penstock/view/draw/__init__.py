"""Facts as HTML and SVG that need no script and no network: for the report and for notebooks."""
