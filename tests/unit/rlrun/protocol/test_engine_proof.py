"""Keys of pools, and the proof of an engine."""

from rlrun.protocol.engine_proof import is_proven, pool_server_key, proof_of

KEY = b"k" * 32


def test_each_pool_has_a_key_of_its_own() -> None:
    pools = [("a", "b"), ("a", "c"), ("b", "b"), ("a-b", "c"), ("a", "b-c")]
    assert len({pool_server_key(KEY, *pool) for pool in pools}) == len(pools)
    assert pool_server_key(KEY, "a", "b") != pool_server_key(b"other", "a", "b")
    assert pool_server_key(KEY, "a", "b") == pool_server_key(KEY, "a", "b")


def test_a_proof_needs_the_key_and_the_nonce() -> None:
    assert is_proven("key", "nonce", proof_of("key", "nonce"))
    for wrong in ("", "é", "\udcff", proof_of("key", "other"), proof_of("other", "nonce"), "key"):
        assert not is_proven("key", "nonce", wrong)
