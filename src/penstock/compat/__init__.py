"""APIs of other libraries on top of Penstock, for code that was written for them."""

from penstock.compat.namespace import install_finders

install_finders()
