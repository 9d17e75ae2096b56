"""The peers' names over Penstock: for code that was written against them."""
