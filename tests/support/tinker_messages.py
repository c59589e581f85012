"""Messages of the package `tinker_public` of tinker 0.38.0, made with the package `protobuf`."""

import re
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

MESSAGES = {
    "SparseCsr": "bytes values=1; bytes crow_indices=2; bytes col_indices=3",
    "Tensor": "bytes dense=1; SparseCsr sparse_csr=2; int32 dtype=3; repeated int64 shape=4",
    "BatchedTensor": "bytes data=1; bytes offsets=2; int32 dtype=3; repeated int64 trailing_shape=4",
    "ArrayRecord": "string type_tag=1; map BatchedTensor fields=2; int64 num_datums=3",
    "ForwardBackwardOutput": "string loss_fn_output_type=1; repeated ArrayRecord loss_fn_outputs=2; "
    "map double metrics=3",
    "LossConfigValue": "double number=1; string text=2",
    "EncodedTextChunk": "bytes tokens=1",
    "ImageChunk": "bytes data=1; string format=2",
    "DmelChunk": "bytes dmel=1",
    "Chunk": "EncodedTextChunk encoded_text=1; ImageChunk image=2; DmelChunk dmel=3",
    "SampledSpan": "string sequence_id=1; int64 offset=2; int64 length=3",
    "ProvenanceSpan": "SampledSpan prompt_tokens=1; SampledSpan sampled_tokens=2",
    "Datum": "repeated Chunk model_input=1; map Tensor loss_fn_inputs=2; repeated ProvenanceSpan model_input_spans=3; "
    "repeated ProvenanceSpan loss_fn_input_spans=4",
    "ForwardBackwardRequest": "string model_id=1; int32 seq_id=2; repeated Datum data=3; string loss_fn=4; "
    "map double loss_fn_config=5; bool forward_only=6; map LossConfigValue loss_fn_config_v2=7",
    "TopkLogprobs": "bytes token_ids=1; bytes logprobs=2; int32 k=3; int32 length=4",
    # `stop_reason` is an enumeration, which has the same bytes.
    "SampledSequence": "int32 stop_reason=1; bytes tokens=2; bytes logprobs=3; TopkLogprobs topk_sampled_logprobs=4",
    "SampleResponse": "repeated SampledSequence sequences=1; bytes prompt_logprobs=2; "
    "TopkLogprobs topk_prompt_logprobs=3; int32 prompt_cache_hit_tokens=4",
}
_FIELD = re.compile(r"(?:(repeated|map) )?(\w+) (\w+)=(\d+)")
_SCALARS = {"double": 1, "int64": 3, "int32": 5, "bool": 8, "string": 9, "bytes": 12}


def _add(message: Any, label: str | None, kind: str, name: str, number: int) -> None:
    field = message.field.add(name=name, number=number, label=3 if label else 1)
    if label == "map":
        entry = message.nested_type.add(name=f"{name.title().replace('_', '')}Entry")
        entry.options.map_entry = True
        _add(entry, None, "string", "key", 1)
        _add(entry, None, kind, "value", 2)
        field.type, field.type_name = 11, f".tinker_public.{message.name}.{entry.name}"
    elif kind in _SCALARS:
        field.type = _SCALARS[kind]
    else:
        field.type, field.type_name = 11, f".tinker_public.{kind}"


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="tests/tinker.proto", package="tinker_public", syntax="proto3")
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for field in fields.split("; "):
            label, kind, field_name, number = _FIELD.fullmatch(field).groups()  # type: ignore[union-attr]
            _add(message, label, kind, field_name, int(number))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"tinker_public.{name}")) for name in MESSAGES
    }


CLASSES = _classes()


def message(name: str) -> Any:
    """Return an empty message."""
    return CLASSES[name]()
