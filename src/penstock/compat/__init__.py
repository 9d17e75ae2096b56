"""The peers' APIs on top of Penstock, for code that was written against them."""
