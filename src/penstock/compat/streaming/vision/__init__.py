"""The original's `streaming.vision`: datasets of images, with transforms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from penstock._facade import modules_of
from penstock.compat.streaming.checks import package
from penstock.compat.streaming.dataset import StreamingDataset
from penstock.compat.streaming.text import AS_THERE
from penstock.errors import ConfigError

__getattr__ = modules_of(__name__)

__all__ = ["StreamingADE20K", "StreamingCIFAR10", "StreamingCOCO", "StreamingImageNet", "StreamingVisionDataset"]

_Transform = Callable[..., Any]


class StreamingVisionDataset(StreamingDataset):
    """Pairs of the columns `x`, an image, and `y`. By default, `x` is converted to torchvision's tensor.

    Args:
        transforms: takes `x` and `y`, and returns both.
        transform: takes `x`.
        target_transform: takes `y`.
        options: of `StreamingDataset`.

    Raises:
        ConfigError: `transforms` and one of the others.
    """

    def __init__(
        self,
        *,
        transforms: _Transform | None = None,
        transform: _Transform | None = None,
        target_transform: _Transform | None = None,
        **options: Any,
    ) -> None:
        if transforms is not None and (transform is not None or target_transform is not None):
            raise ConfigError("Only transforms or transform/target_transform can be given", found="both")
        super().__init__(**{**AS_THERE, **options})
        self.transforms = transforms
        self.transform = transform
        self.target_transform = target_transform

    def get_item(self, sample_id: int, retry: int = 7) -> tuple[Any, Any]:
        """`(x, y)` of sample `sample_id`, transformed."""
        found: Mapping[str, Any] = super().get_item(sample_id, retry)
        x, y = found["x"], found["y"]
        if self.transforms is not None:
            return self.transforms(x, y)
        x = self.transform(x) if self.transform is not None else _to_tensor(x)
        return x, y if self.target_transform is None else self.target_transform(y)


class StreamingImageNet(StreamingVisionDataset):
    """ImageNet."""


class StreamingCIFAR10(StreamingVisionDataset):
    """CIFAR-10."""


class StreamingADE20K(StreamingDataset):
    """ADE20K: an image `x` and its segmentation `y`.

    Args:
        joint_transform: takes `(x, y)`, and returns both; before the others.
        transform: takes `x`.
        target_transform: takes `y`.
        options: of `StreamingDataset`.
    """

    def __init__(
        self,
        *,
        joint_transform: _Transform | None = None,
        transform: _Transform | None = None,
        target_transform: _Transform | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**{**AS_THERE, **options})
        self.joint_transform = joint_transform
        self.transform = transform
        self.target_transform = target_transform

    def get_item(self, sample_id: int, retry: int = 7) -> tuple[Any, Any]:
        """`(x, y)` of sample `sample_id`, transformed."""
        found: Mapping[str, Any] = super().get_item(sample_id, retry)
        x, y = found["x"], found["y"]
        if self.joint_transform is not None:
            x, y = self.joint_transform((x, y))
        if self.transform is not None:
            x = self.transform(x)
        return x, y if self.target_transform is None else self.target_transform(y)


class StreamingCOCO(StreamingDataset):
    """COCO: images with boxes.

    Args:
        transform: takes image, (height, width), sizes of boxes and their labels, and returns these four.
        options: of `StreamingDataset`.
    """

    def __init__(self, *, transform: _Transform | None = None, **options: Any) -> None:
        super().__init__(**{**AS_THERE, **options})
        self.transform = transform

    def get_item(self, sample_id: int, retry: int = 7) -> Any:
        """Image, id of the image, (height, width), sizes of its boxes, their labels."""
        found: Mapping[str, Any] = super().get_item(sample_id, retry)
        given = (found["img"].convert("RGB"), (found["htot"], found["wtot"]), found["bbox_sizes"], found["bbox_labels"])
        image, size, boxes, labels = given if self.transform is None else self.transform(*given)
        return image, found["img_id"], size, boxes, labels


def _to_tensor(image: Any) -> Any:
    return package("torchvision.transforms.functional", "pass transform=").to_tensor(image)
