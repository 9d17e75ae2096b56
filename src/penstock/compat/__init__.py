"""The peers' APIs on top of Penstock, for code that was written against them."""

from penstock.compat.namespace import install_finders

install_finders()
