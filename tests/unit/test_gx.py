from __future__ import annotations
import pytest, torch
from pathlib import Path
from pbgeval import evaluate, load_config
from pbgeval.scoring import device_exact, device_scores
from tests.kit.case import TinyCase

@pytest.mark.parametrize("dynamic",[False,True])
@pytest.mark.parametrize("comparator",["dot","cos","squared_l2","l2"])
@pytest.mark.parametrize("overrides",[["candidates=sampled","num_batch_negs=4","num_uniform_negs=5"],["candidates=sampled","filter_paths={folder}/edges"],["candidates=partition","filter_paths={folder}/edges"],["candidates=all","filter_paths={folder}/edges"],["candidates=all","save_ranks=True"]])
@pytest.mark.parametrize("screen",[False,True])
def test_x(tmp_path, monkeypatch, kernel_device, overrides, dynamic, comparator, screen):
    case = TinyCase.write(tmp_path/"case", dynamic=dynamic, comparator=comparator, edges_per_bucket=30)
    settings=[o.format(folder=case.root) for o in overrides]+["precision=certified"]
    from pbgeval.ranking import auc_sampling; monkeypatch.setattr(auc_sampling,"EXACT_CELLS",0); monkeypatch.setattr(auc_sampling,"SAMPLED_CELLS",300); called=[]
    monkeypatch.setattr(device_exact,"MIN_SCREENED_CELLS",0 if screen else 1<<60)
    orig=device_exact.count
    monkeypatch.setattr(device_exact,"count",lambda *a: (called.append(1), orig(*a))[1])
    got=evaluate(load_config(case.config, settings), output=tmp_path/"g2", workers=1, device="cpu")
    assert called
    monkeypatch.setattr(device_scores,"DEVICE_TYPES",("cuda",))
    want=evaluate(load_config(case.config, settings), output=tmp_path/"c", workers=1, device="cpu")
    assert got.document["metrics"]==want.document["metrics"]
