from rlrun.kube.run_phase import explain_phase, first_unmet_start_condition


def test_a_phase_is_explained_by_its_reason_or_by_the_first_unmet_condition_of_the_start() -> None:
    trainer = {"type": "TrainerReady", "status": "False", "reason": "Starting", "message": "pulls its image"}
    valid = {"type": "Validated", "status": "True", "reason": "Valid", "message": ""}
    conditions = [trainer, {"type": "Running", "status": "False"}, valid, "damaged"]
    assert explain_phase({"reason": "Suspended", "conditions": conditions}) == ("Suspended", "")
    assert explain_phase({"conditions": conditions}) == ("Starting", "pulls its image")
    assert explain_phase({}) == ("", "")
    assert first_unmet_start_condition([valid]) is None
