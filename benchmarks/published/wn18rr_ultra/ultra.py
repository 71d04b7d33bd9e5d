"""ULTRA, a model that ranks answers in graphs that it was not trained on (Galkin et al., ICLR 2024).

It has no table of entities or relations. Two networks of six layers pass messages: one over a graph of relations, which
gives each relation a vector that depends on the query's relation; one over the graph itself, from the query's entity.
In both, a message is the source's state times the vector of the edge's relation, and a node sums its messages.

After layer l, only nodes within l steps of the query's entity have a state that depends on that entity. The others have
the same state for all queries of a relation. It is computed once, and a query computes the states near its entity.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numba
import numpy as np
import torch
from torch import Tensor, nn

from pbgeval import Side

NUM_LAYERS = 6
DIMENSION = 64
MEETINGS = ((0, 0), (2, 2), (0, 2), (2, 0))  # columns of the shared entity: head and head, tail and tail, and so on


class Graph(NamedTuple):
    """Edges in order of the node that gets their message."""

    starts: np.ndarray  # (nodes + 1,) the first edge of each node
    sources: np.ndarray  # (edges,)
    relations: np.ndarray  # (edges,)

    @classmethod
    def from_edges(cls, edges_E3: np.ndarray, num_nodes: int) -> Graph:
        """Sort edges of head, relation, tail by their heads: messages go from tails to heads, as for the authors."""
        in_order_E3 = edges_E3[np.argsort(edges_E3[:, 0], kind="stable")]
        starts = np.searchsorted(in_order_E3[:, 0], np.arange(num_nodes + 1))
        return cls(starts, *np.ascontiguousarray(in_order_E3[:, [2, 1]].T))

    @property
    def num_nodes(self) -> int:
        """The number of nodes."""
        return self.starts.size - 1

    def reached_from(self, is_source_N: np.ndarray) -> np.ndarray:
        """Return which nodes are sources or get a message from one."""
        targets_E = np.repeat(np.arange(self.num_nodes), np.diff(self.starts))
        reached_N = is_source_N.copy()
        reached_N[targets_E[is_source_N[self.sources]]] = True
        return reached_N


def with_inverses(edges_E3: np.ndarray, num_relations: int) -> np.ndarray:
    """Return the edges and, as further relations, their inverses."""
    return np.concatenate([edges_E3, edges_E3[:, ::-1] + [0, num_relations, 0]])


def graph_of_relations(edges_E3: np.ndarray, num_relations: int, num_entities: int) -> Graph:
    """Join two relations that share an entity, for example as the head of the first and the tail of the second."""
    has = {column: np.zeros((num_relations, num_entities), np.float32) for column in (0, 2)}
    for column, has_RN in has.items():
        has_RN[edges_E3[:, 1], edges_E3[:, column]] = 1
    found = []
    for meeting, (first, second) in enumerate(MEETINGS):
        source, target = np.nonzero(has[first] @ has[second].T)
        found.append(np.stack([source, np.full_like(source, meeting), target], axis=1))
    return Graph.from_edges(np.concatenate(found), num_relations)


@numba.njit
def add_messages(starts, sources, relations, nodes, far_ND, place_N, near_PD, relation_RD, sums_AD):  # noqa: ANN001, ANN201
    """Add the messages to some nodes. A source's state is near_PD[its place], or where that is -1, far_ND[source]."""
    for row in range(nodes.size):
        for edge in range(starts[nodes[row]], starts[nodes[row] + 1]):
            source, vector = sources[edge], relation_RD[relations[edge]]
            state = far_ND[source] if place_N[source] < 0 else near_PD[place_N[source]]
            for column in range(vector.size):
                sums_AD[row, column] += state[column] * vector[column]


class Near(NamedTuple):
    """Nodes in order, whose states are not those of nodes far from the query's entity."""

    nodes: np.ndarray  # (P,)
    states: Tensor  # (P, dimension)


class Layer(nn.Module):
    """One step of messages. The names of parameters are those of the published weights."""

    def __init__(self, num_relations: int | None) -> None:
        super().__init__()
        self.layer_norm = nn.LayerNorm(DIMENSION)
        self.linear = nn.Linear(2 * DIMENSION, DIMENSION)
        if num_relations is None:
            self.relation_projection = nn.Sequential(
                nn.Linear(DIMENSION, DIMENSION), nn.ReLU(), nn.Linear(DIMENSION, DIMENSION)
            )
        else:
            self.relation = nn.Embedding(num_relations, DIMENSION)

    def forward(
        self, graph: Graph, far_ND: Tensor, near: Near, reached: np.ndarray, start_AD: Tensor, vectors_RD: Tensor
    ) -> Tensor:
        """Return the next states (A, dimension) of the nodes `reached` (A,), which have those `near` among them."""
        place_N = np.full(graph.num_nodes, -1)
        place_N[near.nodes] = np.arange(near.nodes.size)
        sums_AD = start_AD.clone()
        add_messages(*graph, reached, far_ND.numpy(), place_N, near.states.numpy(), vectors_RD.numpy(), sums_AD.numpy())
        before_AD = far_ND[torch.from_numpy(reached)]
        before_AD[torch.from_numpy(np.searchsorted(reached, near.nodes))] = near.states
        return self.layer_norm(self.linear(torch.cat([before_AD, sums_AD], dim=1))).relu_() + before_AD


class Network(nn.Module):
    """Six layers; with `num_relations`, each has its own vectors of relations, else it projects those it is given."""

    def __init__(self, num_relations: int | None = None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(num_relations) for _ in range(NUM_LAYERS))
        if num_relations is None:
            self.mlp = nn.Sequential(nn.Linear(2 * DIMENSION, 2 * DIMENSION), nn.ReLU(), nn.Linear(2 * DIMENSION, 1))

    def vectors(self, relation_RD: Tensor | None = None) -> list[Tensor]:
        """Return the vectors of relations of each layer."""
        if relation_RD is None:
            return [layer.relation.weight for layer in self.layers]
        return [layer.relation_projection(relation_RD) for layer in self.layers]

    def everywhere(self, graph: Graph, start_ND: Tensor, vectors: list[Tensor]) -> list[Tensor]:
        """Return the states (N, dimension) of all nodes, before each layer and after the last."""
        nodes_N = np.arange(graph.num_nodes)
        none = Near(nodes_N[:0], start_ND[:0])
        found = [start_ND]
        for layer, vectors_RD in zip(self.layers, vectors, strict=True):
            found.append(layer(graph, found[-1], none, nodes_N, start_ND, vectors_RD))
        return found

    def near(self, graph: Graph, node: int, query_D: Tensor, vectors: list[Tensor], far: list[Tensor]) -> Near:
        """Return the nodes within as many steps as there are layers, and their last states."""
        is_near_N = np.zeros(graph.num_nodes, bool)
        is_near_N[node] = True
        near = Near(np.array([node]), query_D[None])
        for layer, vectors_RD, far_ND in zip(self.layers, vectors, far[:-1], strict=True):
            is_near_N = graph.reached_from(is_near_N)
            nodes = np.flatnonzero(is_near_N)
            start_AD = torch.from_numpy(nodes == node)[:, None] * query_D
            near = Near(nodes, layer(graph, far_ND, near, nodes, start_AD, vectors_RD))
        return near


class OfRelation(NamedTuple):
    """What all queries of a relation share."""

    query_D: Tensor
    vectors: list[Tensor]  # of each layer (R, dimension)
    far: list[Tensor]  # states (N, dimension) far from the query's entity
    score_N: Tensor


class Ultra(nn.Module):
    """A function for `pbgeval.side_scorer`: scores of all entities of a graph."""

    def __init__(self, edges_E3: np.ndarray, num_entities: int, num_relations: int) -> None:
        super().__init__()
        self.num_relations = num_relations
        both_ways_E3 = with_inverses(edges_E3, num_relations)
        self.graph = Graph.from_edges(both_ways_E3, num_entities)
        self.relation_graph = graph_of_relations(both_ways_E3, 2 * num_relations, num_entities)
        self.relation_model = Network(num_relations=len(MEETINGS))
        self.entity_model = Network()
        self._last: tuple[int, OfRelation] | None = None  # queries come in order of their relation

    def load(self, path: Path) -> None:
        """Load published weights."""
        self.load_state_dict(torch.load(path, map_location="cpu", weights_only=True)["model"])

    def forward(self, hidden: Side, edges_B3: Tensor) -> Tensor:
        """Return the scores (queries, entities); heads are answers of the inverse relation."""
        is_head = hidden is Side.LHS
        known = edges_B3[:, 2 if is_head else 0].tolist()
        relations = (edges_B3[:, 1] + self.num_relations * is_head).tolist()
        return torch.stack([self.scores(*query) for query in zip(known, relations, strict=True)])

    @torch.no_grad()
    def scores(self, known: int, relation: int) -> Tensor:
        """Return the score (N,) of every answer of one query."""
        if self._last is None or self._last[0] != relation:
            self._last = relation, self._of_relation(relation)
        of = self._last[1]
        near = self.entity_model.near(self.graph, known, of.query_D, of.vectors, of.far)
        return of.score_N.index_copy(0, torch.from_numpy(near.nodes), self._last_score(near.states, of.query_D))

    @torch.no_grad()
    def slow_scores(self, known: int, relation: int) -> Tensor:
        """Return the same by messages among all nodes."""
        of = self._of_relation(relation)
        start_ND = torch.zeros_like(of.far[0])
        start_ND[known] = of.query_D
        return self._last_score(self.entity_model.everywhere(self.graph, start_ND, of.vectors)[-1], of.query_D)

    def _of_relation(self, relation: int) -> OfRelation:
        weight = self.entity_model.mlp[0].weight
        start_RD = weight.new_zeros(2 * self.num_relations, DIMENSION)
        start_RD[relation % self.num_relations] = 1  # the relation itself for heads too, as for the authors
        relation_RD = self.relation_model.everywhere(self.relation_graph, start_RD, self.relation_model.vectors())[-1]
        vectors = self.entity_model.vectors(relation_RD)
        nowhere_ND = weight.new_zeros(self.graph.num_nodes, DIMENSION)
        far = self.entity_model.everywhere(self.graph, nowhere_ND, vectors)
        query_D = relation_RD[relation]
        return OfRelation(query_D, vectors, far, self._last_score(far[-1], query_D))

    def _last_score(self, states_AD: Tensor, query_D: Tensor) -> Tensor:
        return self.entity_model.mlp(torch.cat([states_AD, query_D.expand_as(states_AD)], dim=1)).squeeze(1)
