"""Display of data: samples in the terminal, pages in a browser, and files of a mounted directory."""
