"""Facts as HTML and SVG without scripts or network access: for the report and notebooks."""
