"""The order as the sidecar writes it, and files that are no order."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from rlrun.protocol.shared_pool import MAX_RUNS, PooledRun, PoolOrder
from rlrun_engine_access import order as engine_order
from rlrun_engine_access.order import OrderContent, OrderFile, OrderInvalid

TOKENS = {f"run-{number}": str(number) * 32 for number in range(3)}


def digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def pool_order(count: int = 3) -> PoolOrder:
    runs = [
        PooledRun(uid=uid, token_digest=digest(token), policies=f"s3://bucket/{uid}", max_requests=4)
        for uid, token in list(TOKENS.items())[:count]
    ]
    return PoolOrder(base="org/model", runs=runs)


def replace_file(path: Path, text: str) -> None:
    new = path.with_name("new")
    new.write_text(text)
    new.rename(path)


def read(tmp_path: Path, text: str) -> OrderContent:
    replace_file(tmp_path / "order.json", text)
    return OrderFile(tmp_path / "order.json").read()


def changed(**fields: Any) -> str:
    content = pool_order().to_json_dict()
    content["runs"][0] |= fields  # type: ignore[index]
    return json.dumps(content)


def test_the_sidecars_order_is_read(tmp_path: Path) -> None:
    found = read(tmp_path, pool_order().model_dump_json(by_alias=True))
    assert found.base == "org/model"
    assert [(run.uid, run.max_requests) for run in found.runs] == [(uid, 4) for uid in TOKENS]


def test_a_token_belongs_to_its_run_only(tmp_path: Path) -> None:
    found = read(tmp_path, json.dumps(pool_order().to_json_dict()))
    for uid, token in TOKENS.items():
        run = found.run_with([f"Bearer {token}".encode()])
        assert run is not None
        assert run.uid == uid
    for wrong in ("", "x", TOKENS["run-0"][:-1], digest(TOKENS["run-0"]), "\udcff"):
        assert found.run_with([f"Bearer {wrong}".encode(errors="surrogateescape")]) is None
    for header in (TOKENS["run-0"], f"bearer {TOKENS['run-0']}", f"Basic {TOKENS['run-0']}"):
        assert found.run_with([header.encode()]) is None
    assert found.run_with([]) is None


def test_limits_are_those_of_the_protocol() -> None:
    assert engine_order.MAX_RUNS == MAX_RUNS
    limits = {type(limit).__name__: limit for limit in PooledRun.model_fields["max_requests"].metadata}
    assert limits["Ge"].ge == 1
    assert limits["Le"].le == engine_order.MAX_REQUESTS


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{}", "null", '{"base": "m"}', '{"base": "", "runs": []}', '{"base": 1, "runs": []}',
        '{"base": "m", "runs": {}}', '{"base": "m", "runs": [1]}', '{"base": "m", "runs": [', "[" * 100_000,
        changed(uid="a.b"), changed(uid="a_b"), changed(uid=""), changed(uid="u" * 65), changed(uid=1),
        changed(uid="run-1"), changed(uid="run-0\n"), changed(tokenDigest=digest(TOKENS["run-1"])),
        changed(tokenDigest=""), changed(tokenDigest="A" * 64), changed(maxRequests=0), changed(maxRequests=True),
        changed(maxRequests=65_537), changed(maxRequests="4"), changed(maxRequests=1.5),
        json.dumps({"base": "m", "runs": [], "padding": "x" * engine_order.MAX_BYTES}),
    ],
)  # fmt: skip
def test_a_file_that_is_no_order_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(OrderInvalid):
        read(tmp_path, text)


def test_the_file_is_parsed_again_after_a_replacement_only(tmp_path: Path) -> None:
    path = tmp_path / "order.json"
    file = OrderFile(path)
    for _ in range(2):
        with pytest.raises(OrderInvalid, match="cannot read the list of runs"):
            file.read()
    replace_file(path, pool_order().model_dump_json(by_alias=True))
    found = file.read()
    assert file.read() is found
    stat = path.stat()
    replace_file(path, pool_order().model_dump_json(by_alias=True).replace("run-0", "run-9"))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert [run.uid for run in file.read().runs] == ["run-9", "run-1", "run-2"], "another inode"
    path.unlink()
    with pytest.raises(OrderInvalid):
        file.read()
    replace_file(path, pool_order(1).model_dump_json(by_alias=True))
    assert len(file.read().runs) == 1
    replace_file(path, "{")
    for _ in range(2):
        with pytest.raises(OrderInvalid, match="the list of runs is not valid"):
            file.read()
