"""A device that is not there: tensors on the CPU that say they are on a GPU, and refuse what a GPU would refuse.

Whatever mixes them with tensors of the CPU, or hands them to numpy, raises as torch does with CUDA. Numbers are those
of the CPU to the bit, so a whole run on the pretended device must give the figures of a run on the CPU.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache, partial
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from pbgeval.ranking import draws
from pbgeval.scoring import deferred, device_exact, device_lists, device_pairs, device_scores
from pbgeval.scoring.distances import ABSOLUTE, MODULUS
from pbgeval.scoring.exact import ExactComparator
from pbgeval.scoring.fast_products import values_of_pairs
from pbgeval.scoring.product import paired_product, product
from pbgeval.scoring.true_scores import row_hashes

DEVICE = torch.device("cuda", 0)
SLACK = 1.0 + 1e-9  # of lengths and bounds
SCORES = {"product": product, **{of.name: of for of in (ABSOLUTE, MODULUS)}}
PAIRED = {"product": paired_product, **{of.name: of.paired for of in (ABSOLUTE, MODULUS)}}
MAY_MIX = {"__get__", "copy_", "__setitem__", "__getitem__", "index_put_", "__len__", "size", "stride"}
TAKES_NUMPY = {"numpy", "__array__", "data_ptr"}
ON_THE_HOST = {"item", "tolist", "__bool__", "__int__", "__float__", "__index__", "__repr__", "__format__", "__len__"}


class DeviceError(AssertionError):
    """What torch would refuse on a GPU."""


class OnDevice(Tensor):
    """A tensor that is taken to be on the device; its memory is the CPU's."""

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return call(func, args, kwargs or {})


class PretendDevice(TorchFunctionMode):
    """While it is entered, tensors can be made on or moved to the device."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return call(func, args, kwargs or {})


def call(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Do what torch would do on a machine with the device."""
    name = getattr(func, "__name__", "")
    tensors = [*tensors_in((args, kwargs))]
    on_device = [of for of in tensors if isinstance(of, OnDevice)]
    if name == "__get__" and getattr(func, "__self__", None) is Tensor.device:
        return DEVICE if on_device else torch.device("cpu")
    if on_device and name in TAKES_NUMPY:
        raise DeviceError(f"can't convert a tensor on {DEVICE} to numpy: use .cpu()")
    if on_device and name not in MAY_MIX and any(of.dim() for of in tensors if not isinstance(of, OnDevice)):
        raise DeviceError(f"{name}: expected all tensors on one device, found {DEVICE} and cpu")
    if name == "__getitem__" and not isinstance(args[0], OnDevice) and on_device:
        raise DeviceError("indices on the device for a tensor on the cpu")
    if name == "__setitem__":
        check_assignment(*args)
    if name == "pin_memory":
        pinned: Tensor = args[0].clone()
        pinned.is_pretended_pinned = True
        return pinned
    kwargs = {key: value for key, value in kwargs.items() if key != "pin_memory"}
    target = device_asked_for(name, args, kwargs)
    is_asynchronous = bool(kwargs.get("non_blocking")) and all(is_pinned(of) for of in tensors)
    args, kwargs = mapped(on_the_cpu, (args, kwargs))
    with torch._C.DisableTorchFunction(), counted(func, tensors, target, is_asynchronous):
        result = func(*args, **kwargs)
    if name in ON_THE_HOST:
        return result
    stays = bool(on_device) if target is None else target.type == DEVICE.type
    return mapped(to_the_device, result) if stays else result


def is_pinned(of: Tensor) -> bool:
    """Tell whether a tensor is on the device, or in memory that copies of the device need not be waited for."""
    return isinstance(of, OnDevice) or getattr(of, "is_pretended_pinned", False)


def tensors_in(of: Any) -> Iterator[Tensor]:
    """Yield the tensors of nested tuples, lists and dicts. What torch has for it takes ten times as long."""
    if isinstance(of, Tensor):
        yield of
    elif isinstance(of, tuple | list):
        for inner in of:
            yield from tensors_in(inner)
    elif isinstance(of, dict):
        yield from tensors_in([*of.values()])


def mapped(change: Callable[[Any], Any], of: Any) -> Any:
    """Return nested tuples, lists and dicts with all that is none of them changed."""
    if isinstance(of, tuple | list):
        return type(of)([mapped(change, inner) for inner in of])
    if isinstance(of, dict):
        return {name: mapped(change, inner) for name, inner in of.items()}
    return change(of)


def on_the_cpu(of: Any) -> Any:
    """Return a tensor as one of the CPU, and the CPU for a device."""
    return torch.device("cpu") if isinstance(of, torch.device) else plain(of)


def to_the_device(of: Any) -> Any:
    """Return a tensor as one of the device."""
    return of.as_subclass(OnDevice) if isinstance(of, Tensor) else of


# What a GPU would be asked to do: kernels and copies that are launched, and answers that the host waits for.

NO_KERNELS = {"empty", "empty_like", "empty_strided", "new_empty", "lift_fresh", "_local_scalar_dense", "is_same_size"}
WAITS = {"_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim", "bincount", "equal", "is_nonzero"}
COPIES = {"copy_", "__setitem__", "__getitem__", "index_put_"}


class Launches(TorchDispatchMode):
    """Counts operations on tensors of the device, views and synchronisations, while it is entered."""

    entered: ClassVar[Launches | None] = None

    def __init__(self) -> None:
        super().__init__()
        self.is_on_device = False
        self.operations: Counter[str] = Counter()  # that are no views
        self.views = 0
        self.synchronisations: Counter[str] = Counter()

    def __enter__(self) -> Launches:
        Launches.entered = self
        super().__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        Launches.entered = None
        super().__exit__(*exception)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.partition("::")[2]
        is_view = any(of.alias_info is not None and not of.alias_info.is_write for of in func._schema.returns)
        if self.is_on_device:
            self.operations[name] += not is_view and name not in NO_KERNELS
            self.views += is_view
            of_bools = name.startswith("index") and any(of.dtype is torch.bool for of in tensors_in(args[1:2]))
            repeats = name == "repeat_interleave" and (kwargs or {}).get("output_size") is None
            self.synchronisations[name] += name in WAITS or of_bools or repeats
        return func(*args, **(kwargs or {}))


@contextmanager
def counted(
    func: Callable[..., Any], tensors: list[Tensor], target: torch.device | None, is_asynchronous: bool
) -> Iterator[None]:
    """Count what a call does on the device, and its copies from or to the host, which waits unless they say else."""
    counts, name = Launches.entered, getattr(func, "__name__", "")
    if counts is None:
        yield
        return
    on_device = [isinstance(of, OnDevice) for of in tensors]
    goes = target is not None and bool(tensors) and (target.type == DEVICE.type) != on_device[0]
    mixes = name in COPIES and any(on_device) and any(of.dim() for of in tensors if not isinstance(of, OnDevice))
    counts.operations[f"{name} of the host"] += goes or mixes
    counts.synchronisations[f"{name} of the host"] += (goes or mixes) and not is_asynchronous
    counts.synchronisations[name] += name == "tolist" and any(on_device)
    is_copy = mixes and name == "copy_"
    counts.is_on_device = not is_copy and (any(on_device) or (target is not None and target.type == DEVICE.type))
    try:
        yield
    finally:
        counts.is_on_device = False


def check_assignment(into: Tensor, index: Any, value: Any) -> None:
    """Refuse what `into[index] = value` refuses: index and value of another device, but for copies of slices."""
    indices = [*tensors_in(index)]
    if not isinstance(into, OnDevice) and any(isinstance(of, OnDevice) for of in indices):
        raise DeviceError("indices on the device for a tensor on the cpu")
    if (
        indices
        and isinstance(value, Tensor)
        and value.dim()
        and isinstance(value, OnDevice) != isinstance(into, OnDevice)
    ):
        raise DeviceError("values of another device than the tensor that they are put into")


def device_asked_for(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device | None:
    """Return the device that a call names; None: that of its tensors."""
    if name == "cpu":
        return torch.device("cpu")
    named = [kwargs.get("device")]
    if name == "to":
        named += [of for of in args[1:] if isinstance(of, torch.device | str)]
        named += [other.device for other in args[1:] if isinstance(other, Tensor)]
    found = next((of for of in named if of is not None), None)
    if found is None:
        return None
    device = torch.device(found)
    if device.type == DEVICE.type and (device.index or 0) != DEVICE.index:
        raise DeviceError(f"{name}: asks for {device}, the worker has {DEVICE}")
    return device


def plain(of: Any) -> Any:
    """Return a tensor as one of the CPU, sharing its memory."""
    return of.as_subclass(Tensor) if isinstance(of, OnDevice) else of


# The kernels of a GPU, which has none of them: what they compute is computed by the CPU's products.


def compute_on_the_host(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Let a reference stand for each kernel, with the bits of a CPU's scores; return how often each was launched."""
    launches = SimpleNamespace(scores=0, pairs=0, count=0, exact=0, words=0)

    def scores(query_BQD: Tensor, candidate_BCD: Tensor, term: str = "product") -> Tensor:
        launches.scores += 1
        return SCORES[term](query_BQD, candidate_BCD)

    def pairs(query_QD: Tensor, row_P: Tensor, candidate_CD: Tensor, column_P: Tensor, term: str = "product") -> Tensor:
        launches.pairs += 1
        return PAIRED[term](query_QD[row_P], candidate_CD[column_P])

    def count(
        query_KD: Tensor,
        columns: device_scores.Columns,
        targets: device_scores.Targets,
        term: str = "product",
        count_NQ: Tensor | None = None,
    ) -> Tensor:
        launches.count += 1
        hash_C, own_Q = columns.hash_C, targets.own_Q
        candidate_CD = columns.transposed_KL.mT[: hash_C.numel(), : query_KD.shape[1]]
        scores_QC = SCORES[term](query_KD[None], candidate_CD[None])[0][targets.row_Q]
        twin_QC = (scores_QC == targets.kernel_Q[:, None]) & (hash_C == targets.hash_Q[:, None])
        competes_QC = torch.arange(hash_C.numel()) != own_Q[:, None]
        better_QC = competes_QC & ~twin_QC & (scores_QC > targets.score_Q[:, None])
        tied_QC = competes_QC & (twin_QC | (scores_QC == targets.score_Q[:, None]))
        found_2Q = torch.stack([better_QC.sum(1), tied_QC.sum(1)]).int()
        return found_2Q if count_NQ is None else count_NQ.index_add_(0, torch.arange(2), found_2Q)

    def compare(
        query_KD: Tensor,
        targets: device_scores.Targets,
        candidate_CD: Tensor,
        hash_C: Tensor,
        at_P: Tensor,
        column_P: Tensor,
        term: str = "product",
    ) -> Tensor:
        launches.pairs += 1
        score_P = PAIRED[term](query_KD[targets.row_Q[at_P]], candidate_CD[column_P])
        is_duplicate_P = (score_P == targets.kernel_Q[at_P]) & (hash_C[column_P] == targets.hash_Q[at_P])
        gap_P = torch.sign(score_P - targets.score_Q[at_P])
        return torch.where(is_duplicate_P, 0, gap_P).to(torch.int8)

    def words(key: int, address: int, count: int, device: torch.device) -> Tensor:
        launches.words += 1
        found = draws.DrawStream(key).words_on(draws.HOST, address, count)
        return found.as_subclass(OnDevice) if device.type == DEVICE.type else found

    def scaled(words: Tensor, size: int) -> Tensor:
        launches.words += 1
        with torch._C.DisableTorchFunction():
            return draws.uniform_below(plain(words), size).as_subclass(OnDevice)

    monkeypatch.setattr(draws, "scaled_by_kernel", scaled)
    monkeypatch.setattr(draws, "words_by_kernel", words)
    for kernel in (scores, pairs, count, compare):
        monkeypatch.setattr(device_scores, kernel.__name__, on_the_host(kernel))
    monkeypatch.setattr(device_scores, "version", lambda: "pretended")

    def started(kernel: Callable[..., None], *arguments: Any, **options: Any) -> None:
        launches.exact += 1
        assert all(isinstance(of, OnDevice) for of in arguments if isinstance(of, Tensor)), "a tensor of the host"
        with torch._C.DisableTorchFunction():
            kernel(*map(plain, arguments), **options)

    of_modules = {
        device_lists: (
            mark_cells,
            count_stored,
            draw_cells,
            expand_known,
            count_signs,
            order_columns,
            merge_best,
        ),
        device_exact: (
            round_rows,
            write_screen_limits,
            screen_tiles,
            list_marked,
            write_limits,
            decide_tiles,
        ),
        device_pairs: (describe_rows, score_exactly),
    }
    for module, kernels in of_modules.items():
        started_by_name = {kernel.__name__: _OfGrid(partial(started, kernel)) for kernel in kernels}
        monkeypatch.setattr(module, "_kernels", lambda found=started_by_name: SimpleNamespace(**found))
    monkeypatch.setattr(device_scores, "_current", lambda device: nullcontext())
    monkeypatch.setattr(device_exact, "_devices_without_screen", cache(set))
    monkeypatch.setattr(deferred, "_doubted", cache(set))
    return launches


class _OfGrid:
    """A kernel as Triton has it: an index tells it how many programs to start."""

    def __init__(self, start: Callable[..., None]) -> None:
        self._start = start

    def __getitem__(self, grid: tuple[int]) -> Callable[..., None]:
        return self._start


# What the kernels of `exact_kernels` write, in torch.


def screen_tiles(query, candidate, square, true, error, better, mark, num_marked, *sizes, **options):
    num_queries, num_columns, _, num_steps, most_marked = sizes
    if (num_marked > most_marked) != (options["PARTS"] == 2):
        return
    x_QD, y_ND = query[:num_queries].float(), candidate[:num_columns].float()
    width = num_steps * options["TILE_DEPTH"]
    gap_QC = x_QD[:, :width] @ y_ND[:, :width].mT - true[:num_queries, None]
    if options["PARTS"] == 2:
        gap_QC += x_QD[:, width:] @ y_ND[:, :width].mT + x_QD[:, :width] @ y_ND[:, width:].mT
    if options["IS_DISTANCE"]:
        gap_QC -= square[:num_columns]
    for first in range(0, num_columns, options["SEGMENT"]):
        part_QC = gap_QC[:, first : first + options["SEGMENT"]]
        is_near_Q = (part_QC.abs() <= error[:num_queries, None]).any(1) | (part_QC.shape[1] < options["SEGMENT"])
        better[:num_queries] += torch.where(is_near_Q, 0, (part_QC > 0).sum(1)).int()
        mark[first // options["SEGMENT"]] = is_near_Q


def tiles_of(row, tiles, rows_per_grid, num_listed, list_length, number, **options):
    """Yield the queries, the first column and the end of the columns of each tile."""
    if not options["EVERY"]:
        for place, num_rows, first, stop in tiles[:number].tolist():
            yield row[place : place + num_rows].long(), first, stop
        return
    row_tiles = -(-rows_per_grid // options["TILE_ROWS"])
    column_tiles = -(-num_listed // options["TILE_COLUMNS"])
    for tile in range(number):
        grid, place = tile // (row_tiles * column_tiles), tile % row_tiles * options["TILE_ROWS"]
        first = grid * list_length + tile // row_tiles % column_tiles * options["TILE_COLUMNS"]
        row_M = torch.arange(place, min(place + options["TILE_ROWS"], rows_per_grid)) + grid * rows_per_grid
        yield row_M, first, grid * list_length + num_listed


def decide_tiles(
    query, candidate, square, high, low, row_hash, own, hashes, marks, counts, open_query, *rest, **options
):
    open_column, num_open, row, tiles, num_tiles, most_open, rows_per_grid, num_listed, list_length = rest[:9]
    row_tiles, column_tiles = -(-rows_per_grid // options["TILE_ROWS"]), -(-num_listed // options["TILE_COLUMNS"])
    number = len(high) // rows_per_grid * row_tiles * column_tiles if options["EVERY"] else num_tiles[0]
    for row_M, first, stop in tiles_of(row, tiles, rows_per_grid, num_listed, list_length, number, **options):
        column_N = torch.arange(first, min(stop, first + options["TILE_COLUMNS"]))
        listed_N = column_N % list_length
        at_N = column_N // list_length * num_listed + listed_N
        score_MN = query[row_M].double() @ candidate[:, column_N].double()
        score_MN -= square[at_N] if options["IS_DISTANCE"] else 0
        high_M, low_M = high[row_M, None], low[row_M, None]
        mark_MN = (listed_N == own[row_M, None]).int()
        if options["NUM_GROUPS"]:
            mark_MN = marks.view(-1, num_listed)[row_M[:, None], listed_N]
        competes_MN = (mark_MN & 1) == 0
        is_better_MN = competes_MN & (score_MN > high_M)
        is_open_MN = (score_MN <= high_M) & (score_MN >= low_M) & competes_MN
        ties_MN = is_open_MN & ((hashes[at_N] == row_hash[row_M, None]) | (high_M == low_M))
        for group in range(max(options["NUM_GROUPS"], 1)):
            counts_MN = competes_MN if group == 0 else (mark_MN >> group) & 1 != 0
            counts[3 * group, row_M] += (is_better_MN & counts_MN).sum(1).int()
            counts[3 * group + 1, row_M] += (ties_MN & counts_MN).sum(1).int()
        for at, column in (is_open_MN & ~ties_MN).nonzero().tolist():
            place = int(num_open[0])
            if place < most_open:
                open_query[place], open_column[place] = row_M[at], listed_N[column]
            num_open[0] += 1


def round_rows(rows, largest, norm, half, scale, lengths, num_rows, num_stored, stride, num_columns, width, **options):
    fraction, _ = torch.frexp(largest)
    scale.copy_(torch.where(largest > 0, fraction / largest, 1.0) * 2.0**15)
    x_ND = rows.double() * scale
    high_ND = x_ND.half()
    low_ND = (x_ND - high_ND).half()
    half.zero_()
    half[:num_rows, :num_columns], half[:num_rows, width : width + num_columns] = high_ND, low_ND
    lengths[0] = norm * scale
    for at, part_ND in ((1, low_ND), (2, x_ND - high_ND - low_ND)):
        lengths[at] = torch.linalg.vector_norm(part_ND, dim=1, dtype=torch.float64) * SLACK


def write_screen_limits(limits, lengths, largest, largest_square, square, x_scale, y_scale, *rest, **options):
    true, error, screened_square, _, num_columns, _, width = rest
    scale, unit = x_scale * y_scale, options["UNIT"]
    (norm_Q, low_Q, lost_Q), (norm, low, lost) = lengths, largest
    middle_Q, width_Q = limits[0] * scale, limits[1] * scale
    true.copy_(middle_Q)
    if options["IS_DISTANCE"]:
        screened_square[:num_columns] = (square * scale).clamp(max=2.0**120).float()
    magnitude_Q = (norm_Q + 2 * low_Q + 2 * lost_Q) * (norm + 2 * low + 2 * lost)
    errors = (
        (low_Q + lost_Q) * (norm + low + lost) + norm_Q * (low + lost),
        lost_Q * (norm + lost) + norm_Q * lost + low_Q * low,
    )
    for at, (error_Q, num_terms) in enumerate(zip(errors, (width, 3 * width), strict=True)):
        off_Q = error_Q + magnitude_Q * (num_terms + 16) * unit
        if options["IS_DISTANCE"]:
            off_Q = off_Q + (magnitude_Q + largest_square * scale + middle_Q.abs()) * unit
        error[at] = ((off_Q + width_Q) * SLACK + (true.double() - middle_Q).abs()) * (1 + 2.0**-20)


def list_marked(marks, row, tiles, numbers, num_queries, num_columns, most, **options):
    for segment, marks_Q in enumerate(marks):
        found, place = marks_Q.nonzero().squeeze(1), int(numbers[1])
        numbers[1] += len(found)
        if place + len(found) > most:
            numbers[2] += len(found)
            continue
        row[place : place + len(found)] = found.int()
        for first in range(0, len(found), options["TILE_ROWS"]):
            column = segment * options["SEGMENT"]
            number, stop = min(len(found) - first, options["TILE_ROWS"]), min(column + options["SEGMENT"], num_columns)
            tiles[numbers[0]] = torch.tensor([place + first, number, column, stop])
            numbers[0] += 1


def write_limits(
    score, error, norm, square, largest_norm, largest_square, own, number, limits, counts, *sizes, **options
):
    _, rows_per_grid, num_columns, num_terms, num_groups, has_marks = sizes
    grid_Q = torch.arange(score.numel()) // rows_per_grid
    middle_Q, magnitude_Q, width_Q = score, norm * largest_norm.flatten()[grid_Q], error
    if options["IS_DISTANCE"]:
        squares_Q = square + largest_square.flatten()[grid_Q]
        middle_Q, magnitude_Q = middle_Q + square, magnitude_Q + squares_Q
        width_Q = width_Q + squares_Q * num_terms * 2.0**-52
    width_Q = (width_Q + magnitude_Q * num_terms * 2.0**-52) * SLACK + middle_Q.abs() * 2.0**-50
    limits.copy_(
        torch.stack([middle_Q, width_Q, middle_Q + width_Q * (1 + 2.0**-40), middle_Q - width_Q * (1 + 2.0**-40)])
    )
    counts.zero_()
    if has_marks:
        counts[2::3] = number[:num_groups]
    else:
        counts[2] = num_columns - ((own >= 0) & (own < num_columns)).int()


# What those of `pair_kernels` write.


def describe_rows(rows, _, hashes, norms, squares, *sizes, **options):
    hashes.copy_(row_hashes(rows))
    norms.copy_(torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64) * SLACK)
    squares.copy_(rows[:, : sizes[-1]].double().square().sum(1))


def score_exactly(query, row, candidate, column, true, true_error, true_row, *rest, **options):
    value, score, error, sign, num_open, number, *sizes = rest
    rows_per_grid, num_listed = sizes[4:6]
    row, column, sign = (of[: None if number is None else number[0]] for of in (row, column, sign))
    comparator = ExactComparator("squared_l2" if options["IS_DISTANCE"] else "dot", options["HAS_BIAS"])
    if options["INDEXED"]:
        query = query[row]
        if options["KIND"] != "true":
            candidate = candidate[row // rows_per_grid * num_listed + column]
    if options["KIND"] != "signs":
        value.copy_(values_of_pairs(comparator, query, candidate))
    if options["KIND"] == "values":
        return
    found = comparator.scores_in_float64(query, candidate)
    if options["KIND"] == "true":
        score.copy_(found[0])
        error.copy_(found[1])
        return
    gap_P, bound_P = found[0] - true[row], (found[1] + true_error[row]) * (1 + 2.0**-40)
    is_equal_P = (candidate == true_row[row]).all(1)
    is_open_P = (gap_P.abs() <= bound_P) & (bound_P > 0)
    sign.copy_(torch.where(is_open_P, torch.where(is_equal_P, 0, 2), gap_P.sign()))
    num_open += (is_open_P & ~is_equal_P).sum()


# What those of `list_kernels` write.


def mark_cells(entities, true, outside, *rest, **options):
    known, in_time, (marks, numbers, num_rows, num_queries, num_columns, begins, skips, has_outside) = (
        rest[:4],
        rest[4:8],
        rest[8:],
    )
    entity_QC = entities.view(-1, num_columns).repeat_interleave(num_queries, 0)
    is_true_QC = entity_QC == true.view(-1, 1)
    is_own_QC = (torch.arange(num_columns) == torch.arange(num_rows)[:, None] % num_queries) & bool(begins)
    is_copy_QC = is_true_QC & ~is_own_QC & bool(skips)
    competes_QC = ~(is_own_QC | is_copy_QC)
    if has_outside:
        competes_QC &= outside == 0
    marks.copy_(~competes_QC)
    numbers[0], numbers[3] = competes_QC.sum(1), is_copy_QC.sum(1)
    for at, (key, known_key, known_entity, number) in enumerate((known, in_time)):
        is_known_QC = torch.zeros_like(competes_QC)
        if number:
            width = int(max(known_entity.max(), entity_QC.max())) + 1
            is_known_QC = torch.isin(key[:, None] * width + entity_QC, known_key * width + known_entity)
            is_known_QC &= competes_QC & ~is_true_QC
        marks += (2 << at) * is_known_QC
        numbers[at + 1] = is_known_QC.sum(1)


def count_stored(
    scores, marks, high, low, numbers, counts, true, overflow, num_rows, num_queries, num_columns, *rest, **_
):
    num_groups, reads_own = rest
    if reads_own:
        true.copy_(scores[torch.arange(num_rows), torch.arange(num_rows) % num_queries])
        high = low = true
    better_QC = scores > high[:, None]
    tied_QC = (scores >= low[:, None]) & ~better_QC
    for group in range(num_groups):
        counts_QC = (marks & 1) == 0 if group == 0 else (marks >> group) & 1 != 0
        counts[3 * group] = (better_QC & counts_QC).sum(1)
        counts[3 * group + 1] = (tied_QC & counts_QC).sum(1)
        counts[3 * group + 2] = numbers[group]
    overflow |= int(not scores.isfinite().all())


def draw_cells(words, marks, query, column, drawn, kept, num_cells, num_draws, num_columns, *rates, **_):
    rate, true_rate = (struct.unpack("<d", struct.pack("<ii", low, high))[0] for low, high in (rates[:2], rates[2:]))
    words_QD = words.view(-1, num_draws + 2)
    query.copy_(torch.arange(len(words_QD)).repeat_interleave(num_draws))
    column.copy_(draws.uniform_below(words_QD[:, 2:].flatten(), num_columns))
    number_Q = torch.floor(draws.fractions(words_QD[:, 1]) + rate)
    is_drawn_P = (torch.arange(num_draws) < number_Q[:, None]).flatten()
    drawn.copy_(torch.where(is_drawn_P, marks[query, column], device_lists.EXCLUDED))
    kept.copy_(draws.fractions(words_QD[:, 0]) < true_rate * 2.0**-53)


def expand_known(first, end, known, query, column, num_runs, num_queries, start, num_cells, **_):
    length_n = end.diff(prepend=end.new_zeros(1))
    run_P = torch.arange(num_runs).repeat_interleave(length_n)
    place_P = torch.arange(len(run_P)) - (end - length_n)[run_P] + first[run_P]
    query.copy_((run_P % num_queries)[start : start + num_cells])
    column.copy_(known[place_P][start : start + num_cells])


def count_signs(query, sign, marks, column, own, number, counts, num_cells, num_first, *rest, **_):
    groups, has_marks, has_own, amount, competing = rest[2:]
    query, sign, column = (of[: None if number is None else number[0]] for of in (query, sign, column))
    of_P = marks[query, column].int() ^ 1 if has_marks else groups * (1 + (torch.arange(len(sign)) >= num_first).int())
    if has_own:
        of_P = of_P * (column != own[query])
    for group in range(len(counts) // 3):
        is_here_P = (of_P >> group) & 1 != 0
        for at, added, which_P in ((0, amount, sign > 0), (1, amount, sign == 0), (2, competing, sign <= 1)):
            counts[3 * group + at].index_add_(0, query, (added * (is_here_P & which_P)).int())


def order_columns(scores, best, order, num_columns, *_, **options):
    limit_K1 = best[:, -1:]
    order.copy_(((scores > limit_K1).int() + (scores >= limit_K1).int()) * num_columns - torch.arange(num_columns))


def merge_best(lists, column, order, scores, entity_id, known, merged, first_key, *sizes, **_):
    (num_rows, num_columns), no_id = scores.shape, torch.iinfo(torch.int64).max
    bits_Kk, number_Kk, known_Kk = lists[:, first_key : first_key + num_rows]
    is_out_Kn, code_Kn = order == -num_columns, column + torch.arange(num_rows)[:, None] * num_columns
    score_Kn = torch.cat(
        [
            bits_Kk.view(torch.float64).masked_fill(number_Kk == 0, -torch.inf),
            scores.gather(1, column).double().masked_fill(is_out_Kn, -torch.inf),
        ],
        dim=1,
    )
    number_Kn = torch.cat([number_Kk, (entity_id[column] + 1).masked_fill(is_out_Kn, 0)], dim=1)
    known_Kn = torch.cat([known_Kk, torch.isin(code_Kn, known).long()], dim=1)
    by_id_Kn = number_Kn.masked_fill(number_Kn == 0, no_id).argsort(dim=1)
    order_Kn = (score_Kn.gather(1, by_id_Kn) + 0.0).argsort(dim=1, descending=True, stable=True)  # 0.0 and -0.0 tie
    order_Kk = by_id_Kn.gather(1, order_Kn)[:, : lists.shape[2]]
    for at, of_Kn in enumerate((score_Kn.view(torch.int64), number_Kn, known_Kn)):
        merged[at] = of_Kn.gather(1, order_Kk)


def on_the_host(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Compute with the memory of tensors that are all on the device, and return tensors that are."""

    def launched(*args: Any) -> Any:
        given = [of for arg in args for of in vars_of(arg)]
        assert all(isinstance(of, OnDevice) for of in given), "a kernel is given tensors of the host"
        plain_args = [type(arg)(*map(plain, vars_of(arg))) if hasattr(arg, "__slots__") else arg for arg in args]
        with torch._C.DisableTorchFunction():
            found = kernel(*map(plain, plain_args))
        return mapped(to_the_device, found)

    return launched


def vars_of(arguments: Any) -> list[Tensor]:
    """Return the tensors of an argument, in order: itself, or those of a class of arguments."""
    if isinstance(arguments, Tensor | str):
        return [arguments] if isinstance(arguments, Tensor) else []
    return [getattr(arguments, name) for name in type(arguments).__slots__ if name != "__weakref__"]
