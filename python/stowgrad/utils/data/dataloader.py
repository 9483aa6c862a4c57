"""The loader: samples in the order of a sampler, put together into batches, in the calling process.

Worker processes are accepted as an argument and not started (one warning): a batch is made when it is asked for, so
the order, the batches and the random numbers are those of `num_workers=0`.
"""

from __future__ import annotations

from stowgrad import _C
from stowgrad.utils.data.dataset import IterableDataset
from stowgrad.utils.data.sampler import BatchSampler, RandomSampler, SequentialSampler

__all__ = ["DataLoader", "default_collate", "default_convert", "get_worker_info"]


def get_worker_info():
    """What a worker process knows of itself: always None, since there are none."""
    return None


def default_convert(data):
    """Arrays in any containers as tensors; everything else as it is."""
    kind = type(data)
    if isinstance(data, _C.Tensor):
        return data
    if kind.__module__ == "numpy":
        if kind.__name__ in ("str_", "bytes_") or (kind.__name__ == "ndarray" and data.dtype.kind in "SUO"):
            return data
        return _C.as_tensor(data)
    if isinstance(data, dict):
        return (
            kind({key: default_convert(value) for key, value in data.items()})
            if kind is not dict
            else {key: default_convert(value) for key, value in data.items()}
        )
    if isinstance(data, tuple):
        parts = [default_convert(x) for x in data]
        return kind(*parts) if hasattr(data, "_fields") else parts
    if isinstance(data, list):
        return [default_convert(x) for x in data]
    return data


def default_collate(batch):
    """A list of samples as one batch: tensors are stacked, numbers become a tensor, containers are gone into, strings
    stay a list.

    >>> import stowgrad as torch
    >>> default_collate([{"x": torch.tensor([1.0]), "y": 1}, {"x": torch.tensor([2.0]), "y": 2}])
    {'x': tensor([[1.],
            [2.]]), 'y': tensor([1, 2])}
    """
    first = batch[0]
    kind = type(first)
    if isinstance(first, _C.Tensor):
        return _C.stack(list(batch), 0)
    if kind.__module__ == "numpy" and kind.__name__ not in ("str_", "bytes_"):
        if kind.__name__ == "ndarray":
            if first.dtype.kind in "SUO":
                raise TypeError(
                    "default_collate: batch must contain tensors, numpy arrays, numbers, dicts or lists; found "
                    f"{first.dtype}"
                )
            return _C.stack([_C.as_tensor(x) for x in batch], 0)
        return _C.as_tensor([x.item() for x in batch], dtype=_C.as_tensor(first).dtype)
    if isinstance(first, float):
        return _C.tensor(batch, dtype=_C.float64)
    if isinstance(first, int):
        return _C.tensor(batch)
    if isinstance(first, (str, bytes)):
        return batch
    if isinstance(first, dict):
        collated = {key: default_collate([sample[key] for sample in batch]) for key in first}
        return collated if kind is dict else kind(collated)
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return kind(*(default_collate(list(column)) for column in zip(*batch, strict=True)))
    if isinstance(first, (tuple, list)):
        if any(len(sample) != len(first) for sample in batch):
            raise RuntimeError("default_collate: each element in list of batch should be of equal size")
        columns = [default_collate(list(column)) for column in zip(*batch, strict=True)]
        return columns if isinstance(first, tuple) else kind(columns)
    raise TypeError(f"default_collate: batch must contain tensors, numpy arrays, numbers, dicts or lists; found {kind}")


class DataLoader:
    """Iterates a dataset in batches: `batch_size` samples (None: one by one), in order, shuffled, or as a sampler
    says.

    `collate_fn` makes a batch of a list of samples; by default tensors are stacked. ValueError where options exclude
    each other.

    >>> import stowgrad as torch
    >>> from stowgrad.utils.data import DataLoader, TensorDataset
    >>> for (x,) in DataLoader(TensorDataset(torch.arange(5)), batch_size=2):
    ...     print(x)
    tensor([0, 1])
    tensor([2, 3])
    tensor([4])
    """

    def __init__(
        self,
        dataset,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler=None,
        batch_sampler=None,
        num_workers: int = 0,
        collate_fn=None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn=None,
        multiprocessing_context=None,
        generator=None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
    ) -> None:
        if num_workers < 0:
            raise ValueError(f"DataLoader: num_workers should be non-negative, not {num_workers}")
        if timeout < 0:
            raise ValueError(f"DataLoader: timeout should be non-negative, not {timeout}")
        if num_workers == 0 and prefetch_factor is not None:
            raise ValueError("DataLoader: prefetch_factor could only be specified when num_workers > 0")
        if persistent_workers and num_workers == 0:
            raise ValueError("DataLoader: persistent_workers option needs num_workers > 0")
        if num_workers:
            import warnings

            warnings.warn(
                f"DataLoader: num_workers={num_workers} is ignored, stowgrad loads in the calling process", stacklevel=2
            )
        self.dataset = dataset
        self.num_workers = num_workers
        self.pin_memory = pin_memory
        self.timeout = timeout
        self.worker_init_fn = worker_init_fn
        self.generator = generator
        self.drop_last = drop_last
        iterable = isinstance(dataset, IterableDataset)
        if iterable and (shuffle or sampler is not None or batch_sampler is not None):
            raise ValueError(
                "DataLoader with IterableDataset: shuffle, sampler and batch_sampler have no meaning, the dataset "
                "gives the order"
            )
        if sampler is not None and shuffle:
            raise ValueError("DataLoader: sampler option is mutually exclusive with shuffle")
        if batch_sampler is not None:
            if batch_size != 1 or shuffle or sampler is not None or drop_last:
                raise ValueError(
                    "DataLoader: batch_sampler option is mutually exclusive with batch_size, shuffle, sampler, and "
                    "drop_last"
                )
            batch_size = None
        elif batch_size is None and drop_last:
            raise ValueError(
                "DataLoader: batch_size=None option disables auto-batching and is mutually exclusive with drop_last"
            )
        if sampler is None and not iterable:
            sampler = RandomSampler(dataset, generator=generator) if shuffle else SequentialSampler(dataset)
        if batch_size is not None and batch_sampler is None and not iterable:
            batch_sampler = BatchSampler(sampler, batch_size, drop_last)
        self.batch_size = batch_size
        self.sampler = sampler
        self.batch_sampler = batch_sampler
        self._iterable = iterable
        batched = batch_sampler is not None or (iterable and batch_size is not None)
        self.collate_fn = collate_fn or (default_collate if batched else default_convert)

    def __class_getitem__(cls, item):
        return cls

    def _fetch(self, indices: list):
        dataset = self.dataset
        if callable(getattr(dataset, "__getitems__", None)):
            return self.collate_fn(dataset.__getitems__(indices))
        return self.collate_fn([dataset[i] for i in indices])

    def __iter__(self):
        # one number is drawn here before the sampler draws its seed, as torch does for its workers
        _C.empty((), dtype=_C.int64).random_(generator=self.generator)
        return self._stream() if self._iterable else self._indexed()

    def _indexed(self):
        if self.batch_sampler is not None:
            for indices in self.batch_sampler:
                yield self._fetch(indices)
        else:
            for index in self.sampler:
                yield self.collate_fn(self.dataset[index])

    def _stream(self):
        if self.batch_size is None:
            for sample in self.dataset:
                yield self.collate_fn(sample)
            return
        batch: list = []
        for sample in self.dataset:
            batch.append(sample)
            if len(batch) == self.batch_size:
                yield self.collate_fn(batch)
                batch = []
        if batch and not self.drop_last:
            yield self.collate_fn(batch)

    def __len__(self) -> int:
        if self._iterable:
            n = len(self.dataset)
            if self.batch_size is None:
                return n
            return n // self.batch_size if self.drop_last else -(-n // self.batch_size)
        return len(self.batch_sampler if self.batch_sampler is not None else self.sampler)
