"""Resolves the model name in a request to a deployed model that the user may use."""

import asyncio
from collections.abc import Collection, Sequence

from rlrun_server.authentication.users import Check, User
from rlrun_server.inference.deployed_models import DeployedModel, DeployedModels
from rlrun_server.inference.errors import InferenceError
from rlrun_server.rest.base.access import VISIBLE, Access

MAX_NAMESPACES = 200
"""Maximum number of namespaces that are checked for one list of models."""
MAX_CANDIDATES = 32
"""Maximum number of models with the same name that are checked."""
MAX_NAMED = 5


def chat_check(namespace: str) -> Check:
    """Return the permission to use the deployed models of a namespace."""
    return Check("create", "rladapters", namespace, "chat")


class ModelAccess:
    """Finds models by name and permission. Methods raise InferenceError, RestError, ProblemError."""

    def __init__(self, models: DeployedModels, access: Access) -> None:
        self._models = models
        self._access = access

    async def find(self, user: User, name: str) -> DeployedModel:
        """Return the model of that name that the user may use.

        If several models match, an adapter takes precedence over a base model, a model whose `own_name` is `name` over
        other models, and the namespace of the user's API key over other namespaces.
        """
        candidates = sorted(self._models.find_named(name), key=lambda model: (_rank(model, name, user), model))[
            :MAX_CANDIDATES
        ]
        allowed = await self._select_allowed(user, candidates)
        if not allowed:
            raise await self._not_found(user, name, candidates)
        meant = _most_specific(allowed, name, user)
        if len(meant) > 1:
            known = ", ".join(model.own_name for model in meant[:MAX_NAMED])
            message = f"Several namespaces have a model {name}. Use one of these names: {known}."
            raise InferenceError(400, "ambiguous_model", message, "model")
        return meant[0]

    async def list_permitted(self, user: User) -> list[tuple[str, DeployedModel]]:
        """Return the models that the user may use, each with a name for which `find` returns this model. Checks at most
        MAX_NAMESPACES namespaces, starting with that of the API key.
        """
        models = self._models.all()
        namespaces = sorted({model.namespace for model in models}, key=lambda name: (name != user.namespace, name))
        asked = namespaces[:MAX_NAMESPACES]
        answers = await asyncio.gather(*(self._access.may(user, chat_check(name)) for name in asked))
        allowed = {name for name, is_allowed in zip(asked, answers, strict=True) if is_allowed}
        return [
            (name, model)
            for model in models
            if model.namespace in allowed and (name := self._name(model, allowed, user))
        ]

    def _name(self, model: DeployedModel, namespaces: Collection[str], user: User) -> str:
        """Return the first unambiguous name of a model, or an empty string for a base model hidden by an adapter."""
        for name in model.names:
            candidates = [other for other in self._models.find_named(name) if other.namespace in namespaces]
            if _most_specific(candidates, name, user) == [model]:
                return name
        return ""

    async def _select_allowed(self, user: User, models: Sequence[DeployedModel]) -> list[DeployedModel]:
        answers = await asyncio.gather(*(self._access.may(user, chat_check(model.namespace)) for model in models))
        return [model for model, is_allowed in zip(models, answers, strict=True) if is_allowed]

    async def _not_found(self, user: User, name: str, models: Sequence[DeployedModel]) -> InferenceError:
        for model in models:
            if await self._access.may(user, Check(*VISIBLE, model.namespace)):
                message = (
                    f"User {user.name} may not {chat_check(model.namespace)}. Ask an administrator of the namespace "
                    f"for this permission."
                )
                return InferenceError(403, "access_forbidden", message)
        for model in await self._select_allowed(user, list(self._models.find_undeployed(name))[:MAX_CANDIDATES]):
            message = (
                f"Adapter {model.own_name} is not deployed. Deploy it: "
                f"rlrun adapters deploy {model.adapter} -n {model.namespace}"
            )
            return InferenceError(404, "model_not_found", message, "model")
        message = (
            f"Model {name} does not exist, or you may not use it. GET /v1/models lists the models that you may use."
        )
        return InferenceError(404, "model_not_found", message, "model")


def _most_specific(models: Sequence[DeployedModel], name: str, user: User) -> list[DeployedModel]:
    """Return the models with the highest precedence: one, or several if the name is ambiguous."""
    first = min((_rank(model, name, user) for model in models), default=None)
    return [model for model in models if _rank(model, name, user) == first]


def _rank(model: DeployedModel, name: str, user: User) -> tuple[bool, bool, bool]:
    return not model.adapter, model.own_name != name, model.namespace != user.namespace
