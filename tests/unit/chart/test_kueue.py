"""Chart values of Kueue."""

from rlrun_operator.config.settings import parse_settings

from tests.unit.chart.conftest import Render, Rendered
from tests.unit.chart.test_render import MINIMAL


def operator_groups(rendered: Rendered) -> set[str]:
    (role,) = [o for o in rendered.of("ClusterRole") if o["metadata"]["name"] == "rlrun-operator"]
    return {group for rule in role["rules"] for group in rule["apiGroups"]}


def test_without_kueue_nobody_has_a_right_for_it(render: Render) -> None:
    rendered = render(MINIMAL, base=None)
    assert parse_settings(rendered.settings).kueue is None
    assert not {"kueue.x-k8s.io", "scheduling.k8s.io"} & operator_groups(rendered)
    assert not [o for o in rendered.objects if o["metadata"]["name"].endswith("-kueue")]


def test_with_kueue_the_operator_may_write_workloads_and_kueue_may_read_runs(render: Render) -> None:
    account = {"namespace": "queues", "name": "manager"}
    values = {**MINIMAL, "kueue": {"enabled": True, "priorityClasses": ["team-*"], "serviceAccount": account}}
    rendered = render(values, base=None)
    kueue = parse_settings(rendered.settings).kueue
    assert kueue is not None
    assert kueue.priority_classes == ["team-*"]
    assert "kueue.x-k8s.io" in operator_groups(rendered)
    assert "scheduling.k8s.io" not in operator_groups(rendered), "no PriorityClass is allowed, so none is read"
    with_classes = render({**values, "runs": {"priorityClasses": ["high"]}}, base=None)
    assert "scheduling.k8s.io" in operator_groups(with_classes)
    assert rendered.one("ClusterRole", "rlrun-kueue")["rules"] == [
        {"apiGroups": ["rlrun.dev"], "resources": ["rlruns"], "verbs": ["get", "list", "watch"]}
    ]
    (subject,) = rendered.one("ClusterRoleBinding", "rlrun-kueue")["subjects"]
    assert subject == {"kind": "ServiceAccount", **account}


def test_roles_of_others_are_not_made_with_own_rbac(render: Render) -> None:
    rendered = render({**MINIMAL, "kueue": {"enabled": True}, "rbac": {"create": False}}, base=None)
    assert not [o for o in rendered.objects if o["metadata"]["name"].endswith("-kueue")]
    assert parse_settings(rendered.settings).kueue is not None
