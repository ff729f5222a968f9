"""cluster.yaml: what it may say, and what is told when it says something else."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from borealis.cli.cluster_file import is_here, load_cluster_file
from borealis.errors import BorealisError

WHOLE = """
coordinator: {host: 10.1.2.3, port: 7000, catalog: catalog.sqlite}
token_file: secrets/token
tls: {cert: node.pem, key: node.key, ca: ca.pem}
nodes:
  - {name: node1, host: 10.1.2.3, port: 7481, announce: "b.example:9", master: "local[2]", data: /var/lib/borealis}
  - {name: node2, host: 10.1.2.4, cores: 2, data: data2}
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "cluster.yaml"
    path.write_text(text)
    return path


def test_a_whole_file_is_read_and_its_paths_are_taken_from_its_folder(tmp_path: Path) -> None:
    found = load_cluster_file(written(tmp_path, WHOLE))
    assert (found.coordinator.host, found.coordinator.port) == ("10.1.2.3", 7000)
    assert found.coordinator.catalog == tmp_path / "catalog.sqlite"
    assert found.token_file == tmp_path / "secrets" / "token"
    assert found.tls is not None
    assert found.tls.key == tmp_path / "node.key"
    assert [node.data for node in found.nodes] == [Path("/var/lib/borealis"), tmp_path / "data2"]
    assert found.hosts == ["10.1.2.3", "10.1.2.4"]
    assert found.reached == ["10.1.2.3", "b.example", "10.1.2.4"]


def test_nodes_alone_are_enough(tmp_path: Path) -> None:
    found = load_cluster_file(written(tmp_path, "nodes: [{name: a}, {name: b}]"))
    assert (found.coordinator.host, found.coordinator.port) == ("127.0.0.1", 7470)
    assert [node.port for node in found.nodes] == [0, 0]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[1, 2]", "describes no cluster"),
        ("nodes: {", "is no YAML"),
        ("nodes: [&a {name: a}, *a]", "an alias (*a): write out what it stands for"),
        ("coordinator: {}", "'nodes' is missing"),
        ("nodes: []", "'nodes' is no list of nodes (got []). Hint: write 'nodes: [{name: node1}]'"),
        ("nodes: 3", "'nodes' is no list of nodes (got 3)"),
        ("nodes: [a]", "'nodes.0' has no keys (got a). Hint: keys there are name, host, port"),
        ("nodes: [{name: a}]\ncoordinator: here", "'coordinator' has no keys (got here). Hint: keys there are host"),
        ("nodes: [{host: 127.0.0.1}]", "'nodes.0.name' is missing"),
        ("nodes: [{name: a, prot: 1}]", "unknown key 'nodes.0.prot'. Hint: did you mean 'port'?"),
        ("nods: [{name: a}]\nnodes: [{name: a}]", "unknown key 'nods'. Hint: did you mean 'nodes'?"),
        ("nodes: [{name: a}]\ntls: {cert: a}", "'tls.key' is missing. Hint: a certificate and its key go together"),
        ("nodes: [{name: a, port: 70000}]", "nodes.0.port"),
        ("nodes: [{name: a, cores: 0}]", "nodes.0.cores"),
        ("nodes: [{name: 'a b'}]", "'nodes.0.name' cannot be a name (got a b). Hint: use letters, digits and _ . ~ -"),
        ("nodes: [{name: ..}]", "'nodes.0.name' cannot be a name (got ..)"),
        ("nodes: [{name: a}, {name: a}]", "two nodes are called 'a'"),
        ("nodes: [{name: coordinator}]", "cannot be called 'coordinator'"),
        ("nodes: [{name: a, host: 0.0.0.0}]", "cannot be called"),
        ("nodes: [{name: a, announce: here}]", "'here', which 'a' shall announce, is no address. Hint: write HOST"),
        ("nodes: [{name: a, announce: '10.0.0.7:1'}]", "'127.0.0.1' can be reached from its own machine only"),
        ("nodes: [{name: a, port: 7470}]", "127.0.0.1:7470 is given twice"),
        ("nodes: [{name: a, host: 10.0.0.7}]", "'127.0.0.1' can be reached from its own machine only"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(text: str, says: str, tmp_path: Path) -> None:
    path = written(tmp_path, text)
    with pytest.raises(BorealisError) as told:
        load_cluster_file(path)
    assert says in str(told.value)
    assert str(path) in str(told.value)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(BorealisError, match="cannot read"):
        load_cluster_file(tmp_path / "nowhere.yaml")


def test_which_hosts_are_this_machine() -> None:
    assert is_here("127.0.0.1")
    assert is_here("localhost", we_are="somebody")
    assert is_here(socket.gethostname())
    assert not is_here("192.0.2.1")  # reserved for documentation: nobody's
    assert not is_here("no-such-host.invalid")
    assert is_here("worker7", we_are="worker7")
    assert not is_here(socket.gethostname(), we_are="worker7")
