"""One name that levanter's store imports: what a job may take, of which nothing is run here."""


class ResourceConfig:
    """Stands for the class of this name."""

    def __init__(self, **options: object) -> None:
        self.options = options
