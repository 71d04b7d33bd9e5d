"""Trains models by PyKEEN on its bundled Nations data and evaluates each by its evaluators and by ours.

A part of pykeen_programs.py. Writes to FOLDER the triples (train.npy, valid.npy, test.npy: head, relation, tail), and
for each model to FOLDER/NAME

    exported/      plain arrays by pbgeval/examples/export_pykeen.py, where we know the model's formula
    metrics.json   {"theirs": {setting: flat metrics}, "ours": the same}
    ranks.npz      filtered ranks, each (2, test triples) for head and tail queries: theirs_optimistic,
                   theirs_pessimistic, ours_optimistic, ours_pessimistic; and from float64 scores the ranks if every
                   candidate within the rounding bound loses (least) or wins (most)

Of models whose parameters are multiples of 1/4 it writes exact.npz: the same ranks by PyKEEN (NAME.theirs), by ours
from vectors (NAME.vectors) and by ours from the model's own scores (NAME.asked), optimistic above pessimistic ones.
"""

import copy
import json
import runpy
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from pykeen.datasets import Nations
from pykeen.evaluation import MacroRankBasedEvaluator, RankBasedEvaluator
from pykeen.pipeline import pipeline

REPOSITORY = Path(__file__).resolve().parents[2]
MODELS = {
    "distmult": ("DistMult", False, {}),
    "complex": ("ComplEx", False, {}),
    "transe": ("TransE", False, {}),
    "transe_l2": ("TransE", False, {"scoring_fct_norm": 2}),
    "rotate": ("RotatE", False, {}),
    "complex_with_inverses": ("ComplEx", True, {}),
    "rescal": ("RESCAL", False, {}),
    "cp": ("CP", False, {"rank": 2}),
    "simple": ("SimplE", False, {}),
    "tucker": ("TuckER", False, {}),  # of which we have no formula
}
# What macro averages and restrictions depend on: vectors, vectors of inverse relations, scores of the model alone.
ALL_SETTINGS = ("distmult", "complex_with_inverses", "tucker")
EXACT = ("distmult", "complex", "transe", "transe_l2", "complex_with_inverses", "rescal", "cp", "simple")
CHOSEN = {"restrict_entities_to": list(range(9)), "restrict_relations_to": list(range(0, 55, 2))}
RELATIVE_BOUND = 1e-5  # of the largest score: sums of 12 float32 products round by less than 32 * 2^-24 of their terms
DIMENSION = 12


def main(folder: Path) -> None:
    """Train, evaluate and write."""
    export = runpy.run_path(str(REPOSITORY / "pbgeval" / "examples" / "export_pykeen.py"))["main"]
    exact = {}
    for name, (model_name, inverses, further) in MODELS.items():
        nations = Nations(create_inverse_triples=inverses)
        result = pipeline(
            dataset=nations,
            model=model_name,
            model_kwargs={"embedding_dim": DIMENSION, **further},
            training_kwargs={"num_epochs": 2, "use_tqdm": False},
            evaluation_kwargs={"use_tqdm": False},
            random_seed=3,
        )
        out = folder / name
        result.save_to_directory(str(out / "saved"))
        if name != "tucker":
            export(str(out / "saved" / "trained_model.pkl"), str(out / "exported"))
        evaluate(result.model, nations, out, all_settings=name in ALL_SETTINGS)
        if name in EXACT:
            exact |= {f"{name}.{way}": ranks for way, ranks in exact_ranks(result.model, nations, out).items()}
    np.savez(folder / "exact.npz", **exact)
    for name, of_split in (("train", nations.training), ("valid", nations.validation), ("test", nations.testing)):
        np.save(folder / f"{name}.npy", of_split.mapped_triples.numpy())


def evaluate(model, nations, out: Path, all_settings: bool) -> None:
    """Write the figures and ranks of both."""
    from pbgeval.integrations import pykeen as ours

    known = [nations.training, nations.validation]
    filters = {"additional_filter_triples": [of_split.mapped_triples for of_split in known]}
    quiet = {"use_tqdm": False, "batch_size": 64}
    test = nations.testing.mapped_triples
    evaluator = RankBasedEvaluator(clear_on_finalize=False)
    theirs = {"micro": evaluator.evaluate(model, test, **filters, **quiet)}
    saving = ours.RankBasedEvaluator(settings={"save_ranks": True}, output=out / "output")
    mine = {"micro": saving.evaluate(model, nations.testing, additional_filter_triples=known)}
    if all_settings:
        theirs["macro"] = MacroRankBasedEvaluator().evaluate(model, test, **filters, **quiet)
        theirs["restricted"] = RankBasedEvaluator().evaluate(
            model, test, **filters, **quiet, **CHOSEN, pre_filtered_triples=False
        )
        mine["macro"] = ours.RankBasedEvaluator(macro=True).evaluate(model, test, **filters)
        mine["restricted"] = ours.RankBasedEvaluator().evaluate(model, test, **filters, **CHOSEN)
    frames = {"theirs": theirs["micro"].to_df(), "ours": mine["micro"].to_df()}
    shapes = {of: [list(frame.columns), [str(kind) for kind in frame.dtypes]] for of, frame in frames.items()}
    metrics = {
        of: {setting: result.to_flat_dict() for setting, result in results.items()}
        for of, results in (("theirs", theirs), ("ours", mine))
    }
    (out / "metrics.json").write_text(json.dumps({**metrics, "frames": shapes}), encoding="ascii")
    ranks = {
        f"theirs_{kind}": np.stack([np.concatenate(evaluator.ranks[side, kind]) for side in ("head", "tail")])
        for kind in ("optimistic", "pessimistic")
    }
    np.savez(out / "ranks.npz", **ranks, **our_ranks(out / "output"), **bounds(model, nations))


def exact_ranks(model, nations, out: Path) -> dict[str, np.ndarray]:
    """Rank by multiples of 1/4, whose scores are exact: PyKEEN's ranks, ours from vectors, ours from its own scores."""
    from pbgeval.integrations import pykeen as ours

    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randint(-3, 4, parameter.shape, generator=generator) / 4)
    known = [nations.training.mapped_triples, nations.validation.mapped_triples]
    test = nations.testing.mapped_triples
    evaluator = RankBasedEvaluator(clear_on_finalize=False)
    evaluator.evaluate(model, test, additional_filter_triples=known, use_tqdm=False)
    kinds = ("optimistic", "pessimistic")
    found = {
        "theirs": np.stack([[np.concatenate(evaluator.ranks[s, kind]) for s in ("head", "tail")] for kind in kinds])
    }
    for way in ("vectors", "asked"):
        instead = ours.pykeen_vectors if way == "vectors" else lambda *_: None
        with mock.patch.object(ours, "pykeen_vectors", instead):
            results = ours.RankBasedEvaluator(settings={"save_ranks": True}, output=out / way).evaluate(
                model, test, additional_filter_triples=known
            )
        assert (results.report.document["provenance"]["settings"]["comparator"] == "scorer") == (way == "asked")
        found[way] = np.stack(list(our_ranks(out / way).values()))
    return found


def our_ranks(output: Path) -> dict[str, np.ndarray]:
    """Return the filtered ranks of `save_ranks`."""
    from pbgeval.notation import ENDS, Bucket
    from tests.saved_ranks import read_ranks

    columns = read_ranks(output, 0, Bucket(0, 0)).columns
    optimistic = np.stack([1 + columns[side]["better"] - columns[side]["excluded_better"] for side in ENDS])
    tied = np.stack([columns[side]["tied"] - columns[side]["excluded_tied"] for side in ENDS])
    return {"ours_optimistic": optimistic, "ours_pessimistic": optimistic + tied}


def bounds(model, nations) -> dict[str, np.ndarray]:
    """Rank by float64 scores, with all candidates within the rounding bound behind and in front."""
    precise = copy.deepcopy(model).double()
    test = nations.testing.mapped_triples
    splits = (nations.training, nations.validation, nations.testing)
    known = {tuple(triple) for of_split in splits for triple in of_split.mapped_triples.tolist()}
    found = {"least": [], "most": []}
    for hidden, ask in ((0, precise.predict_h), (2, precise.predict_t)):
        with torch.no_grad():
            scores = ask(test[:, 1:] if hidden == 0 else test[:, :2]).numpy()
        assert scores.dtype == np.float64
        bound = RELATIVE_BOUND * np.abs(scores).max()
        rows = {"least": [], "most": []}
        for row, triple in enumerate(test.tolist()):
            others = [
                other
                for other in range(nations.num_entities)
                if other != triple[hidden] and (*triple[:hidden], other, *triple[hidden + 1 :]) not in known
            ]
            margins = scores[row, others] - scores[row, triple[hidden]]
            rows["least"].append(1 + int((margins > bound).sum()))
            rows["most"].append(1 + int((margins >= -bound).sum()))
        for end, of_end in rows.items():
            found[end].append(of_end)
    return {end: np.array(of_end) for end, of_end in found.items()}
