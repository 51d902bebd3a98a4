"""graph.json and plain graphs: what is written is read back, and what is malformed ends in one line that names the node."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import graphs
import pytest
from emitted import zoo_model
from hypothesis import given
from hypothesis import strategies as st

from remat_codegen.errors import GraphFileError
from remat_codegen.graph.blocks import cut_into_blocks
from remat_codegen.graph.exchange import Exchange, dumps, load, loads
from remat_codegen.graph.ir import Kind, Phase, validate
from remat_codegen.planners.base.registry import PLANNERS
from remat_codegen.planners.base.result import Status
from remat_codegen.profile.costs import Profile
from remat_codegen.schedule import simulate, without_recomputation
from remat_codegen.schedule import validate as validate_schedule


def exchanged(graph, profile):
    return Exchange(replace(graph, blocks=cut_into_blocks(graph)), profile.time_ns, profile.workspace_bytes, profile.device)


# --- our own format --------------------------------------------------------------------------------------------------------


@given(st.integers(0, 10**6), st.integers(1, 12), st.booleans())
def test_what_is_written_is_read_back(seed, count, once):
    found = exchanged(*graphs.random_graph(seed, count, once))
    text = dumps(found)
    assert loads(text) == found
    assert dumps(loads(text)) == text
    again = tuple(n.id for n in found.graph.nodes if n.recomputable)
    reserving = replace(found, reserve_bytes=1 + seed, drawing=again[::2])
    assert loads(dumps(reserving)) == reserving


@pytest.mark.parametrize("name", ["gpt2", "resnet", "unet", "odd"])
def test_models_are_read_back_with_their_blocks_and_plans(name):
    graph = zoo_model(name)[3].graph
    profile = Profile(
        tuple(1000 + 7 * i % 5000 for i in range(len(graph.nodes))), tuple(8 * i for i in range(len(graph.nodes)))
    )
    found = loads(dumps(Exchange(graph, profile.time_ns, profile.workspace_bytes)))
    assert found.graph == graph and found.graph.digest() == graph.digest()
    again = Profile(found.time_ns, found.workspace_bytes, found.device)
    budget = simulate(graph, profile, without_recomputation(graph)).peak_bytes * 7 // 10
    for planner in ("dtr", "chen", "rotor"):
        assert PLANNERS[planner](graph, profile, budget) == PLANNERS[planner](found.graph, again, budget)


def small():
    return json.loads(dumps(exchanged(*graphs.training_graph([graphs.Op((), 4, 1), graphs.Op((0,), 4)]))))


def drop(key, *path):
    def change(rows):
        for step in path:
            rows = rows[step]
        del rows[key]

    return change


def put(value, *path):
    def change(rows):
        for step in path[:-1]:
            rows = rows[step]
        rows[path[-1]] = value

    return change


@pytest.mark.parametrize(
    "change, message",
    [
        (put("other", "format"), "the format is 'other'"),
        (put(2, "version"), "version 2 "),
        (put(True, "version"), "version True "),
        (drop("version"), "version None "),
        (drop("nodes"), "no list of nodes"),
        (put([], "nodes"), "list of nodes is empty"),
        (put({}, "data"), "no list of data"),
        (put(3, "nodes", 1), "node 1 is 3"),
        (drop("phase", "nodes", 1), "node 1 (f1) has no phase"),
        (put("sideways", "nodes", 1, "phase"), "phase is 'sideways'"),
        (put("backward", "nodes", 1, "phase"), "node 1 (f1) stands on the wrong side of the loss"),
        (put(-1, "nodes", 1, "time_ns"), "node 1 (f1): time_ns is negative"),
        (put(1.5, "nodes", 1, "time_ns"), "node 1 (f1): time_ns is 1.5, not an integer"),
        (put("3", "nodes", 1, "time_ns"), "node 1 (f1): time_ns is '3'"),
        (put(True, "nodes", 1, "time_ns"), "node 1 (f1): time_ns is True"),
        (put(float("nan"), "nodes", 1, "workspace_bytes"), "node 1 (f1): workspace_bytes is nan"),
        (put(float("inf"), "data", 0, "bytes"), "data 0: bytes is inf"),
        (put(-4, "data", 0, "bytes"), "data 0: bytes is negative: -4"),
        (put(10**30, "data", 0, "bytes"), "data 0: bytes is larger"),
        (put(1, "data", 0, "id"), "data 1 stands twice"),
        (put([], "data", 0, "id"), "id is []"),
        (drop("bytes", "data", 0), "data 0 has no bytes"),
        (put("number", "data", 0, "kind"), "kind is 'number'"),
        (put([99], "nodes", 1, "reads"), "node 1 (f1) names data 99"),
        (put([[0]], "nodes", 1, "reads"), "node 1 (f1) names data [0]"),
        (put(0, "nodes", 1, "reads"), "node 1 (f1) names its data by 0"),
        (put([0, 0], "nodes", 1, "reads"), "node 1 (f1) names data 0 twice"),
        (put([1], "nodes", 0, "reads"), "node 0 (f0) reads v1 before anything writes it"),
        (put([], "nodes", 0, "writes"), "reads v0 before anything writes it"),
        (put([0, 3], "nodes", 3, "writes"), "node 3 (b1) writes v0 after the loss"),
        (put(1, "nodes", 1, "forward"), "node 1 (f1) belongs to forward node 1"),
        (put(4, "nodes", 4, "forward"), "node 4 (b0) belongs to forward node 4"),
        (put(7, "loss"), "the loss is 7"),
        (put(-1, "reserve_bytes"), "the reserve is -1"),
        (put([99], "drawing"), "a node that draws is 99"),
        (put(3, "drawing"), "the nodes that draw random numbers are no list"),
        (put([2], "drawing"), "node 2 (loss) draws random numbers, and cannot run again"),
        (put(1, "loss"), "not the loss"),
        (put("x", "outputs"), "the list of outputs names its data by 'x'"),
        (put(3, "device"), "the device is no text"),
        (put(1, "nodes", 1, "recomputable"), "recomputable is 1"),
        (put(1, "nodes", 1, "colour"), "node 1 has 'colour'"),
    ],
)
def test_malformed(change, message):
    rows = small()
    change(rows)
    with pytest.raises(GraphFileError) as caught:
        loads(json.dumps(rows))
    assert message in caught.value.line() and "\n" not in caught.value.line()


def test_not_json_at_all(tmp_path):
    for text in ("", "{", "nonsense", "[" * 100000, '{"nodes": ' + "9" * 5000 + "}", '{"a": 1, "a": 2}'):
        with pytest.raises(GraphFileError):
            loads(text)
    path = tmp_path / "g.json"
    path.write_bytes(b"\xff\xfe\x00")
    for place, message in ((path, "UTF-8"), (tmp_path, "cannot read"), (tmp_path / "none", "cannot read")):
        with pytest.raises(GraphFileError, match=message):
            load(place)
    path.write_text("\ufeff" + json.dumps(small()), encoding="utf-8")
    assert load(path).graph.loss == 2


values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | st.sampled_from(["forward", "id", "a", "value"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("id time size deps nodes".split()), inner),
    max_leaves=8,
)


@given(st.data())
def test_any_change_is_read_or_refused(data):
    """A value of a good file replaced by anything: no other error than the one for users."""
    rows = small() if data.draw(st.booleans()) else plain_chain(3)
    place = rows
    while True:
        key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        if not (isinstance(place[key], (dict, list)) and place[key] and data.draw(st.booleans())):
            break
        place = place[key]
    place[key] = data.draw(values)
    try:
        found = loads(json.dumps(rows))
    except GraphFileError as error:
        assert "\n" not in error.line()
    else:
        validate(found.graph)


# --- plain graphs ----------------------------------------------------------------------------------------------------------


def plain_chain(count):
    """Forward nodes f0, f1, ..., then a backward node for each, as Checkmate's graphs have them."""
    forward = [{"id": f"f{i}", "time": i + 1, "size": 100, "deps": [f"f{i - 1}"] if i else []} for i in range(count)]
    backward = []
    for i in reversed(range(count)):
        deps = [f"f{i}", *([f"f{i - 1}"] if i else []), *([f"b{i + 1}"] if i < count - 1 else [])]
        backward.append({"id": f"b{i}", "time": 2, "size": 100, "backward": True, "deps": deps})
    return {"nodes": [*forward, *backward]}


def test_marked_backward_nodes():
    found = loads(json.dumps(plain_chain(12)))
    graph = found.graph
    assert graph.loss == 12 and len(graph.nodes) == 25 and found.notes == ()
    assert [n.phase for n in graph.nodes[11:14]] == [Phase.FORWARD, Phase.LOSS, Phase.BACKWARD]
    assert graph.data[0].kind is Kind.VALUE and graph.data[12].kind is Kind.GRADIENT
    assert len(graph.blocks) > 1 and [n.forward for n in graph.backward_nodes] == list(range(11, -1, -1))


def test_the_same_graph_in_other_words():
    rows = plain_chain(5)["nodes"]
    expected = loads(json.dumps({"nodes": rows})).graph
    edges = [[d, r["id"]] for r in rows for d in r["deps"]]
    bare = [{k: v for k, v in r.items() if k != "deps"} for r in rows]
    links = [{"source": a, "target": b} for a, b in edges]
    phases = [{**r, "phase": "backward" if r.get("backward") else "forward"} for r in rows]
    shuffled = random.Random(1).sample(bare, len(bare))
    renamed = [
        {"name": r["id"], "cost": r["time"], "memory": r["size"], "inputs": r["deps"], "backward": "backward" in r}
        for r in rows
    ]
    for other in ({"nodes": bare, "edges": edges}, {"nodes": bare, "links": links}, phases, {"nodes": renamed}):
        assert loads(json.dumps(other)).graph == expected
    by_name = {r["id"]: {k: v for k, v in r.items() if k != "id"} for r in rows}
    assert loads(json.dumps({"nodes": by_name})).graph == expected
    assert len(loads(json.dumps({"nodes": shuffled, "edges": edges})).graph.nodes) == len(expected.nodes)


def test_times_without_unit():
    rows = [{"time": 0.25, "size": 1.5}, {"time": 3, "size": 0, "deps": [0]}]
    found = loads(json.dumps(rows))
    assert found.scale is not None and found.time_ns[0] * 12 == found.time_ns[2] and sum(found.time_ns) >= 10**9
    assert found.graph.data[0].nbytes == 2
    assert loads("[[1, 2], [3, 4]]").scale == 1


def test_nothing_is_marked():
    rows = [{k: v for k, v in row.items() if k != "backward"} for row in plain_chain(6)["nodes"]]
    found = loads(json.dumps(rows))
    assert found.graph.loss == 6 and "no node is marked as backward" in found.notes[0]
    named = loads(json.dumps({"nodes": rows, "loss": "f5"}))
    assert named.graph.nodes[named.graph.loss].name == "f5" and named.graph.loss == 5 and not named.notes


def test_a_backward_pass_is_added():
    rows = plain_chain(6)["nodes"][:6]
    asked = loads(json.dumps(rows), add_backward=True)
    marked = loads(json.dumps([{**r, "phase": "forward"} for r in rows]))
    assert asked == marked and len(asked.graph.nodes) == 13
    assert asked.time_ns[-1] == 2 * asked.time_ns[0] and asked.graph.backward_nodes[0].forward == 5
    named = loads(json.dumps({"nodes": rows, "loss": "f5"}), add_backward=True)
    assert named.graph.nodes[5].phase is Phase.LOSS and len(named.graph.nodes) == 11
    for text, message in ((json.dumps(plain_chain(2)), "backward nodes already"), (json.dumps(small()), "holds its backward")):
        with pytest.raises(GraphFileError, match=message):
            loads(text, add_backward=True)


@pytest.mark.parametrize(
    "rows, message",
    [
        (3, "no nodes"),
        ({}, "no nodes"),
        ({"nodes": []}, "is empty"),
        ({"nodes": 7}, "the nodes are 7"),
        ([[1]], "node 0 is [1]"),
        ([None], "node 0 is None"),
        ([{"id": "a", "size": 1}], "node 'a' has no time"),
        ([{"id": "a", "time": 1}], "node 'a' has no size"),
        ([{"id": "a", "time": 1, "cost": 1, "size": 1}], "node 'a' has both time and cost"),
        ([["a", -1, 1]], "node 'a': time is negative"),
        ([["a", 1, float("nan")]], "node 'a': size is nan"),
        ([["a", 1, float("inf")]], "node 'a': size is inf"),
        ([["a", 1, 10**40]], "node 'a': size is larger"),
        ([["a", 1, 1], ["a", 1, 1]], "node 'a' stands twice"),
        ([[1.5, 1, 1]], "node 0: id is 1.5"),
        ([{"id": "a", "time": 1, "size": 1, "deps": ["b"]}], "an input of node 'a' is 'b', which is no node"),
        ([{"id": "a", "time": 1, "size": 1, "deps": ["a"]}], "node 'a' reads its own result"),
        ([{"id": "a", "time": 1, "size": 1, "deps": "a"}], "node 'a' has inputs that are 'a'"),
        ([{"id": "a", "time": 1, "size": 1, "backward": 1}], "backward is 1"),
        ([{"id": "a", "time": 1, "size": 1, "phase": "loss"}], "phase is 'loss'"),
        ({"nodes": [["a", 1, 1]], "edges": [["a", "b"]]}, "edge ['a', 'b'] is 'b', which is no node"),
        ({"nodes": [["a", 1, 1]], "edges": [["a"]]}, "an edge is ['a']"),
        ({"nodes": [["a", 1, 1]], "edges": {}}, "the edges are no list"),
        ({"nodes": [["a", 1, 1], ["b", 1, 1]], "edges": [["a", "b"], ["b", "a"]]}, "a cycle: node 'a', 'b'"),
        ({"nodes": [["a", 1, 1]], "loss": "c"}, "the loss is 'c'"),
        ({"nodes": [["a", 1, 1]], "outputs": 3}, "the outputs are no list"),
        (
            [
                {"id": "a", "time": 1, "size": 1, "backward": True},
                {"id": "b", "time": 1, "size": 1, "deps": ["a"], "backward": False},
            ],
            "forward node 'b' reads backward node 'a'",
        ),
    ],
)
def test_malformed_plain_graphs(rows, message):
    with pytest.raises(GraphFileError) as caught:
        loads(json.dumps(rows))
    assert message in caught.value.line()


def test_sizes_that_are_too_large_together():
    with pytest.raises(GraphFileError, match="too large together"):
        loads(json.dumps([[i, 1, 2**53] for i in range(9)]))


# --- planners on graphs they have never seen -------------------------------------------------------------------------------

FAST = [n for n in PLANNERS if n not in ("best", "checkmate", "checkmate-lp")]


def plain_graph(seed, count, marked):
    """A random plain graph: long and short edges, widths and costs of all sizes, some of them zero."""
    rng = random.Random(seed)
    rows = []
    for i in range(count):
        deps = {rng.randrange(max(0, i - 6), i) for _ in range(rng.choice((0, 1, 1, 2, 3)))} if i else set()
        deps |= {rng.randrange(i)} if i and rng.random() < 0.3 else set()
        row = {"id": i, "time": rng.choice((0, 1, rng.random(), 50)), "size": rng.choice((0, 1, 7, 1000)), "deps": sorted(deps)}
        row["workspace"] = rng.choice((0, 0, 30))
        rows.append(row | ({"backward": i >= count * 2 // 3} if marked else {}))
    return {"nodes": rows, "outputs": [count - 1] if seed % 2 else []}


@pytest.mark.parametrize("name", FAST)
@pytest.mark.parametrize("how", ["marked", "unmarked", "added"])
def test_planners_on_plain_graphs(name, how):
    for seed in range(8):
        text = json.dumps(plain_graph(seed, 1 + 5 * seed, how == "marked"))
        found = loads(text, add_backward=how == "added")
        graph, profile = found.graph, Profile(found.time_ns, found.workspace_bytes)
        most = simulate(graph, profile, without_recomputation(graph)).peak_bytes
        for budget in (most * 6 // 10, most * 9 // 10, most):
            plan = PLANNERS[name](graph, profile, budget)
            if plan.schedule is None:
                assert plan.minimum_bytes is None or plan.minimum_bytes > budget
                continue
            validate_schedule(graph, plan.schedule)
            timeline = simulate(graph, profile, plan.schedule)
            assert (timeline.time_ns, timeline.peak_bytes) == (plan.time_ns, plan.peak_bytes)
            assert timeline.peak_bytes <= budget


@pytest.mark.slow
@pytest.mark.parametrize("name", [*(n for n in FAST if n != "rockmate"), "checkmate"])
def test_planners_on_thousands_of_nodes(name):
    found = loads(json.dumps(plain_graph(1, 1500, False)), add_backward=True)
    graph, profile = found.graph, Profile(found.time_ns, found.workspace_bytes)
    budget = simulate(graph, profile, without_recomputation(graph)).peak_bytes * 7 // 10
    plan = PLANNERS[name](graph, profile, budget)
    assert len(graph.nodes) == 3001
    if plan.schedule is None:
        assert plan.status is Status.INFEASIBLE
        return
    validate_schedule(graph, plan.schedule)
    assert simulate(graph, profile, plan.schedule).peak_bytes == plan.peak_bytes <= budget
    assert plan.status is Status.TOO_LARGE or name != "checkmate"
