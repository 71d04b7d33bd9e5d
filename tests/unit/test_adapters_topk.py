"""Ranking files of AnyBURL and SAFRAN -> ranks where the true entity is listed, bounds where it is not."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pbgeval import from_ranks
from pbgeval.errors import StorageError
from pbgeval.metrics.given import ListedRanks, UnknowableMetricError
from pbgeval.models.topk import TopK, read_topk
from pbgeval.notation import ENDS
from tests.kit.commands import with_peak
from tests.kit.names import names_of
from tests.kit.refusals import fault_of

TEST = "a\tlikes\tb\nc\tlikes\td\n"
TWICE, RISING = "a r b\nHeads: x\t1\tx\t1\nTails:\n", "a r b\nHeads:\nTails: x\t1\ty\t2\n"
RANKING = (
    "a likes b\nHeads: x\t0.9\ta\t0.9\ty\t0.2\t\nTails: c\t0.5\t\n"
    "c likes d\nHeads: \nTails: d\t1.0000\tx\t0.0\t\n"
)  # fmt: skip


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def read(folder: Path, ranking: str = RANKING, test: str = TEST, known: str | None = None, **options) -> TopK:
    known_files = [] if known is None else [written(folder / "known.tsv", known)]
    files = written(folder / "ranking.txt", ranking), written(folder / "test.tsv", test)
    return read_topk(*files, known_files, names_of=names_of, **options)


def rows(topk: TopK) -> list[tuple]:
    ranks = topk.ranks
    columns = (ranks.is_listed_Q, ranks.optimistic_Q, ranks.pessimistic_Q, ranks.num_candidates_Q)
    return [tuple(column[at].item() for column in columns) for at in range(ranks.num_queries)]


def test_a_repeated_edge_is_as_many_queries_as_it_is_evaluated(tmp_path: Path) -> None:
    once = RANKING.partition("c likes")[0]

    assert read(tmp_path, test="a\tlikes\tb\n" * 2, ranking=once * 2).edge_Q.tolist() == [0, 0, 1, 1]
    assert read(tmp_path, test="a\tlikes\tb\n" * 2, ranking=once).counts["num_missing"] == 1


def test_labels_with_spaces_are_found_among_the_evaluated_edges(tmp_path: Path) -> None:
    ranking = "New York in United States\nHeads: York\t1\tNew York\t1\t\nTails:\t\n"
    assert rows(read(tmp_path, test="New York\tin\tUnited States\n", ranking=ranking)) == [
        (True, 1, 2, 3),
        (False, 1, 3, 3),
    ]


def test_entities_of_a_file_are_the_candidates(tmp_path: Path) -> None:
    entities = written(tmp_path / "entities.tsv", "".join(f"{at}\t{name}\n" for at, name in enumerate("abcdxyz12")))

    assert set(read(tmp_path, entities=entities).ranks.num_candidates_Q.tolist()) == {9}
    with pytest.raises(StorageError, match=r"ranking.txt:2: expected an entity of the file of entities, found 'w'"):
        read(tmp_path, ranking="a likes b\nHeads: w\t1\t\nTails:\n", entities=entities)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a b\n", ":1: expected an edge, 'head relation tail', found 'a b'"),
        ("\na r b\nTails: \n", ":3: expected the line 'Heads: ...' of edge 'a r b', found 'Tails: '"),
        ("a r b\nHeads: \n", ":3: expected the line 'Tails: ...' of edge 'a r b', found the end of the file"),
        ("a\tr\tb\tc\nHeads:\nTails:\n", ":1: expected 3 columns separated by tabs, found 4"),
        ("a\t\tb c\nHeads:\nTails:\n", ":1: rel is empty"),
        ("a r b\nHeads: x\t1\ry\t1\nTails:\n", ":2: a carriage return (CR) within the line"),
        ("a r b\n", ":2: expected the line 'Heads: ...' of edge 'a r b', found the end of the file"),
        ("a r b\nHeads: x\n", ":2: expected entities and confidences by turns"),
        ("a r b\nHeads: x\t1\t\t2\t\n", ":2: expected entities and confidences by turns"),
        ("a r b\nHeads: x\thigh\t\n", ":2: expected a confidence, a finite number, found 'high'"),
        ("a r b\nHeads: \nTails: x\tinf\t\n", ":3: expected a confidence, a finite number, found 'inf'"),
        ("a r b\nHeads: x\t0.1\ty\t0.2\t\n", ":2: expected confidences in descending order, found 0.2 after 0.1"),
        ("a r b\nHeads: x\t0.2\tx\t0.2\t\n", ":2: expected each entity once, found 'x' again"),
    ],
)
def test_a_malformed_line_is_an_error_with_its_number(tmp_path: Path, text: str, message: str) -> None:
    path = written(tmp_path / "ranking.txt", text)

    assert fault_of(lambda: read_topk(path, written(tmp_path / "test.tsv", TEST), names_of=names_of)).startswith(
        f"{path}{message}"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"test": ""}, "test.tsv: there are no edges in this file"),
        ({"ranking": ""}, "ranking.txt: no edge of "),
        ({"test": "a b\n"}, "test.tsv:1: expected 3 columns separated by tabs, found 1; columns must be separated by"),
        ({"known": "a\t\tb\n"}, "known.tsv:1: rel is empty"),
        (
            {"ranking": "a likes b\nHeads:\nTails:\n" * 2, "test": "a\tlikes\tb\n"},
            "ranking.txt:4: expected edge 'a likes b' once, as it is evaluated",
        ),
        (
            {"ranking": "a b c d\nHeads:\nTails:\n", "test": "a b\tc\td\na\tb c\td\n"},
            "ranking.txt:1: expected a line that means one evaluated edge",
        ),
        ({"ranking": TWICE + RISING}, "ranking.txt:2: expected"),  # the first fault is told
        ({"ranking": RISING + TWICE}, "ranking.txt:3: expected"),
        ({"ranking": RISING + "a r\n"}, "ranking.txt:3: expected"),
        ({"ranking": "a r b\n" + TWICE}, "ranking.txt:2: expected"),
    ],
)
def test_what_cannot_be_ranked_is_refused(tmp_path: Path, options: dict[str, str], message: str) -> None:
    assert message in fault_of(lambda: read(tmp_path, **options))


def test_gzip_is_read_and_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    other = "q likes r\nHeads: " + "".join(f"{at:0100}\t0.5\t" for at in range(100)) + "\nTails: \n"
    path, test = tmp_path / "ranking.txt.gz", written(tmp_path / "test.tsv", TEST)
    path.write_bytes(gzip.compress((RANKING + other * 600).encode(), 1))  # 6 MB
    expected = rows(read(tmp_path, ranking=RANKING + other))

    found, peak = with_peak(lambda: read_topk(path, test, names_of=names_of))

    assert (rows(found), found.counts["num_not_evaluated"]) == (expected, 600)
    assert peak < 3_000_000


def test_memory_of_a_query_is_that_of_its_numbers(tmp_path: Path) -> None:
    lines = [f"e{at % 499} r{at % 89} e{at % 501}" for at in range(20_000)]
    ranking = written(tmp_path / "ranking.txt", "".join(f"{line}\nHeads: e1\t0.5\nTails:\n" for line in lines))
    test = written(tmp_path / "test.tsv", "\n".join(lines).replace(" ", "\t"))

    found, peak = with_peak(lambda: read_topk(ranking, test, names_of=names_of))

    assert found.ranks.num_queries == 40_000
    assert peak < 12_000_000  # with tuples and texts it was 30 MB


# The same as one edge after the other, in the plainest Python.


def reference(test, known, ranking, names, filtering, ties):
    """Return rows of (side, edge, is listed, optimistic, pessimistic, candidates, length), and counts."""
    counts = dict.fromkeys(("not_evaluated", "absent", "empty", "known_listed", "tied_with_last"), 0)
    found, met = [], []
    for triple, lists in ranking:
        if triple not in test:
            counts["not_evaluated"] += 1
            continue
        edge = [at for at, other in enumerate(test) if other == triple][met.count(triple)]
        met.append(triple)
        for side, listed in enumerate(lists):
            place = 2 * side
            true, rest = triple[place], triple[:place] + triple[place + 1 :]
            answers = {other[place] for other in (*test, *known) if other[:place] + other[place + 1 :] == rest}
            listed_known = [entity for entity, _ in listed if entity in answers and entity != true]
            number = len(names) - (0 if filtering == "none" else len(answers) - 1)
            number += len(listed_known) if filtering == "producer" else 0
            if filtering == "known":
                listed = [pair for pair in listed if pair[0] not in listed_known]
            own = dict(listed).get(true)
            first, last = len(listed) + 1, number  # where it is not listed
            if own is not None:
                first = sum(confidence > own for _, confidence in listed) + 1
                last = sum(confidence >= own for _, confidence in listed)
                counts["tied_with_last"] += own == listed[-1][1]
                if ties == "order":
                    first = last = [entity for entity, _ in listed].index(true) + 1
            for name, times in (("known_listed", len(listed_known)), ("empty", not listed), ("absent", own is None)):
                counts[name] += times
            found.append((side, edge, own is not None, first, last, number, len(listed)))
    return found, {"num_missing": len(test) - len(met), **{f"num_{name}": n for name, n in counts.items()}}


LABELS = ["a", "b", "c", "a b", "b c", "é", "x_1", "d"]
triple_of = st.tuples(*(st.sampled_from(names) for names in (LABELS, ["r", "s", "r s"], LABELS)))
list_of = st.lists(st.tuples(st.sampled_from(LABELS), st.sampled_from(["1", "0.5", ".50", "5e-1", "0.25", "-0", "0"])),
                   unique_by=lambda pair: pair[0])  # fmt: skip


@pytest.mark.slow
@given(
    data=st.data(),
    test=st.lists(triple_of, min_size=1, max_size=6),
    known=st.lists(triple_of, max_size=8),
    other=st.lists(triple_of, max_size=3),
    filtering=st.sampled_from(["producer", "known", "none"]),
    ties=st.sampled_from(["confidence", "order"]),
    num_bytes_of_a_block=st.sampled_from([1, 5, 30, 100, 1 << 18]),
)
def test_blocks_of_edges_give_what_one_edge_after_the_other_gives(
    tmp_path_factory, data, test, known, other, filtering, ties, num_bytes_of_a_block
) -> None:
    evaluated = data.draw(st.lists(st.sampled_from(range(len(test))), unique=True, min_size=1))
    order = data.draw(st.permutations([test[at] for at in evaluated] + [edge for edge in other if edge not in test]))
    by_confidence = [
        (edge, [sorted(data.draw(list_of), key=lambda pair: -float(pair[1])) for _ in range(2)]) for edge in order
    ]
    text = "".join(
        "\t".join(edge) + "".join(f"\n{word}: " + "".join(f"{e}\t{c}\t" for e, c in of) for word, of in
                                  zip(("Heads", "Tails"), lists, strict=True)) + "\n"
        for edge, lists in by_confidence
    )  # fmt: skip
    ranking = [(edge, [[(e, float(c)) for e, c in of] for of in lists]) for edge, lists in by_confidence]
    names = {edge[at] for edge in (*test, *known) for at in (0, 2)}
    names |= {entity for _, lists in ranking for of in lists for entity, _ in of}
    folder = tmp_path_factory.mktemp("ranking")

    with mock.patch("pbgeval.storage.text._BYTES_AT_A_TIME", num_bytes_of_a_block):
        found = read(
            folder,
            ranking=text,
            test="".join("\t".join(edge) + "\n" for edge in test),
            known="".join("\t".join(edge) + "\n" for edge in known) or None,
            filtering=filtering,
            ties=ties,
        )

    expected, counts = reference(test, known, ranking, names, filtering, ties)
    sides, edges, lengths = found.hidden_Q.tolist(), found.edge_Q.tolist(), found.list_length_Q.tolist()
    actual = [(sides[at], edges[at], *row, lengths[at]) for at, row in enumerate(rows(found))]
    assert (actual, found.counts, found.num_entities) == (expected, counts, len(names))


@pytest.mark.parametrize(
    ("test", "text", "edge"),
    [
        ("a b\tr\tc\nd\tr\tc\n", "a b r c", 0),
        ("a\tb r\tc\n", "a b r c", 0),
        (" a\tr\tc \n", " a r c ", 0),
        ("a\tr\tc  d\nx\tr\ty\n", "a r c  d", 0),
        ("a b\tc\td\na\tb c\td\n", "a\tb c\td", 1),  # by tabs
    ],
)
def test_a_text_of_spaces_means_the_edges_that_its_words_can_be(
    tmp_path: Path, test: str, text: str, edge: int
) -> None:
    assert read(tmp_path, test=test, ranking=f"{text}\nHeads:\nTails:\n").edge_Q.tolist() == [edge] * 2
    others = "".join(f"{other}\nHeads:\nTails:\n" for other in ("a b x c", "q\tr\tc", "a r c"))
    assert read(tmp_path, test="a\tr\tc\n", ranking=others).counts["num_not_evaluated"] == 2


# Metrics: every completion of the lists lies within the bounds, and the ends are reached.

queries = st.lists(
    st.tuples(st.booleans(), st.integers(0, 3), st.integers(0, 2), st.integers(0, 4)), min_size=1, max_size=5
)


def listed(found: list[tuple[bool, int, int, int]]):
    is_listed, before, ties, more = (np.array(column) for column in zip(*found, strict=True))
    number = before + 1 + ties + more
    return ListedRanks(is_listed, before + 1, np.where(is_listed, before + 1 + ties, number), number)


@given(queries, st.sampled_from(["mrr", "hits@2", "mean_rank", "gmr", "hmr", "amri", "zmrr", "median_rank", "ahits@2"]))
def test_bounds_hold_every_completion_and_are_reached(found, name):
    ranks, rng = listed(found), np.random.default_rng(0)
    low, high, number = ranks.optimistic_Q, ranks.pessimistic_Q, ranks.num_candidates_Q

    def value_of(absent, key):
        ends = (np.where(ranks.is_listed_Q, of, absent) for of in (low, high))
        return from_ranks(*ends, number)[key]

    for rank_type in ("optimistic", "realistic", "pessimistic"):
        key = f"{rank_type}.{name}"
        bounds = ranks.metrics().bounds(key)
        ends = [value_of(absent, key) for absent in (low, high)]
        assert bounds == (min(ends), max(ends))
        assert bounds[0] - 1e-9 <= value_of(rng.integers(low, high + 1), key) <= bounds[1] + 1e-9
        assert from_ranks(np.where(ranks.is_listed_Q, low, number), high, number)[key] == ranks.metrics("last")[key]


def test_what_the_lists_do_not_tell_is_refused_with_the_reason() -> None:
    absent = listed([(True, 0, 0, 4), (False, 3, 0, 4)])
    metrics, zero = absent.metrics(), absent.metrics("zero")

    assert (metrics["hits@1"], metrics["hits@3"], metrics["count"]) == (0.5, 0.5, 2)  # the list has three
    assert metrics.bounds("mrr") == (pytest.approx((1 + 1 / 8) / 2), pytest.approx((1 + 1 / 4) / 2))
    no_value = "has no value where a true entity that is not listed has no"
    for of, name, reason in (
        (metrics, "mrr", "'mrr' lies between 0.5625 and 0.625: 1 of 2 lists"),
        *((metrics, name, f"'{name}' neither grows nor falls with every") for name in ("variance", "std", "mad")),
        *((zero, name, no_value) for name in ("mean_rank", "amri", "ahits@1", "median_rank")),
    ):
        with pytest.raises(UnknowableMetricError, match=reason):
            of[name]
    assert absent.metrics("last")["variance"] is not None
    assert (zero["mrr"], zero["hits@10"], zero["expected.mrr"], zero["count"]) == (0.5, 0.5, 0.5, 2)
    of_all_listed, nobody = listed([(True, 0, 1, 4)]), listed([(False, 0, 0, 4)]).metrics("zero")
    assert of_all_listed.metrics("last")["variance"] == of_all_listed.metrics("zero")["variance"]
    assert (nobody["mrr"], nobody["hits@3"]) == (0.0, 0.0)


def test_without_queries_nothing_is_defined() -> None:
    empty = listed([(True, 0, 0, 0)]).select(np.array([False]))

    assert [empty.metrics(name)["mrr"] for name in ("bounds", "last", "zero")] == [None] * 3


# Reference data


@pytest.mark.reference
def test_the_safran_vectors_are_equal(reference_path: Path, tmp_path: Path) -> None:
    folder = reference_path / "vectors"
    expected = json.loads((folder / "safran_expected.json").read_text())
    graph = folder / expected["dataset"]
    names = json.loads((graph / "dictionary.json").read_text())
    edges = {split: np.load(graph / f"{split}.npy").tolist() for split in ("train", "valid", "test")}
    entities, relations = names["entity_labels"], names["relation_labels"]
    test, *known = (
        written(
            tmp_path / f"{split}.tsv",
            "".join(f"{entities[h]}\t{relations[r]}\t{entities[t]}\n" for h, r, t in edges[split]),
        )
        for split in ("test", "train", "valid")
    )

    found = read_topk(folder / expected["file"], test, known, names_of=names_of)

    queries = zip(
        found.edge_Q.tolist(), found.hidden_Q.tolist(), rows(found), found.list_length_Q.tolist(), strict=True
    )
    by_query = {(tuple(edges["test"][edge]), hidden): (*row, length) for edge, hidden, row, length in queries}
    keys = ("in_list", "optimistic", "pessimistic", "num_candidates", "list_length")
    of_vectors = {
        (tuple(query["triple"]), side.value): tuple(query[side.pick("Heads", "Tails")][key] for key in keys)
        for query in expected["queries"]
        for side in ENDS
    }
    counts = [found.counts[f"num_{name}"] for name in ("absent", "missing", "known_listed")]
    assert (of_vectors, [expected["absent"], 0, 0]) == (by_query, counts)
    metrics = found.ranks.metrics()
    for name in ("mrr", "hits@1", "hits@3", "hits@10"):
        for end, rank_type in ((1, "optimistic"), (0, "pessimistic")):
            near = pytest.approx(expected["bounds"][rank_type][name], rel=1e-12)
            assert metrics.bounds(f"{rank_type}.{name}")[end] == near
    truncated = found.ranks.metrics("zero")["pessimistic.mrr"]
    assert truncated == pytest.approx(expected["mrr_truncated_pessimistic_ties"], rel=1e-12)
