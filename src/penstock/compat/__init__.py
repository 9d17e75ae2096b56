"""The peers' APIs on top of Penstock, for code that was written against them."""

from penstock.compat.absent import explain_absent_modules

explain_absent_modules()
