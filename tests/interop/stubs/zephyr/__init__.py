"""As much of the job runner zephyr as levanter's store uses: jobs are calls, one after another."""

from types import SimpleNamespace

counters = SimpleNamespace(increment=lambda *what: None)


class Dataset:
    """A list."""

    def __init__(self, items):
        self.items = items

    @classmethod
    def from_list(cls, items):
        """Of these."""
        return cls(list(items))

    def map(self, fn):
        """Of what `fn` makes of each."""
        return Dataset([fn(one) for one in self.items])


class ZephyrContext:
    """Runs nothing: the list is made."""

    def __init__(self, **options):
        self.options = options

    def execute(self, dataset, **options):
        """The list."""
        return SimpleNamespace(results=dataset.items)
