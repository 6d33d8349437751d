"""The published task types: which exist, who serves them, and whether a payload fits."""

import asyncio
import time
from typing import Any, NamedTuple

import jsonschema_rs
import structlog

from app.envelope import invalid, pointer
from app.errors import Fault, Problem
from app.shared import shared
from taskgate.contract.models import TypeInfo
from taskgate.contract.store import Store

logger = structlog.get_logger()

FRESH_S = 2.0
ASK_AGAIN_S = 0.25
"""A payload or type that does not fit makes the registry look again, but not more often than that."""

MAX_FAULTS = 20
_STARTING_RETRY_S = 1


class Variant(NamedTuple):
    """A task type under one payload schema: while workers are replaced, there may be several."""

    info: TypeInfo
    served: bool
    validator: jsonschema_rs.Validator


class TypeRegistry:
    """Task types as published in Redis, at most FRESH_S old, with compiled validators."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._types: dict[str, list[Variant]] = {}
        self._compiled: dict[tuple[str, str], jsonschema_rs.Validator] = {}
        self._read_at = float("-inf")
        self._reading: asyncio.Task[None] | None = None

    async def accept(self, name: str, payload: Any) -> TypeInfo:
        """The published type that `payload` fits, the one served now first.

        Raises:
            Problem: no such type, or the payload does not fit; nothing published yet.
        """
        age_s = time.monotonic() - self._read_at
        found = self._fitting(name, payload)
        if found is not None and age_s < FRESH_S:
            return found
        if found is None and age_s >= ASK_AGAIN_S:
            await self.refresh()
            found = self._fitting(name, payload)
        if found is None:
            raise self._refusal(name, payload)
        self._refresh_soon()
        return found

    async def listed(self) -> list[Variant]:
        if time.monotonic() - self._read_at >= ASK_AGAIN_S:
            await self.refresh()
        return [variant for name in sorted(self._types) for variant in self._types[name]]

    def limit_of(self, name: str) -> int | None:
        """How many of a type may run at a time, as it was read last; None: any number, or not known."""
        found = self._types.get(name)
        return found[0].info.concurrency if found else None

    async def refresh(self) -> None:
        """Read again; callers at the same time share one read."""
        await asyncio.shield(self._refresh_soon())

    def _refresh_soon(self) -> asyncio.Task[None]:
        if self._reading is None:
            self._reading = shared(self._read())  # what fails in the background is tried again by the next call
            self._reading.add_done_callback(self._read_done)
        return self._reading

    def _read_done(self, _: asyncio.Task[None]) -> None:
        self._reading = None

    async def _read(self) -> None:
        started = time.monotonic()
        published = await self._store.types()
        workers = await self._store.workers()
        served = {name for worker in workers for name in worker.types}
        types: dict[str, list[Variant]] = {}
        for info in sorted(published, key=lambda info: info.published_ms, reverse=True):
            is_served = f"{info.type}:{info.schema_hash}" in served
            types.setdefault(info.type, []).append(Variant(info, is_served, self._validator(info)))
        for variants in types.values():
            variants.sort(key=lambda variant: not variant.served)
        self._compiled = {key: self._compiled[key] for key in {(one.type, one.schema_hash) for one in published}}
        self._types = types
        self._read_at = started

    def _validator(self, info: TypeInfo) -> jsonschema_rs.Validator:
        key = info.type, info.schema_hash
        known = self._compiled.get(key)
        if known is None:
            try:
                # masked: an error must not repeat what the caller sent; offline: no $ref makes us fetch anything
                known = jsonschema_rs.validator_for(bytes(info.schema).decode(), mask="value", offline=True)
            except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError) as error:
                logger.error("schema of a task type is unusable", task_type=info.type, error=str(error))
                known = jsonschema_rs.validator_for(True, offline=True)  # the child checks in any case
            self._compiled[key] = known
        return known

    def _fitting(self, name: str, payload: Any) -> TypeInfo | None:
        variants = self._types.get(name, [])
        for variant in variants:
            # One that nobody serves any more counts only while no other is served.
            if (variant.served or not variants[0].served) and variant.validator.is_valid(payload):
                return variant.info
        return None

    def _refusal(self, name: str, payload: Any) -> Problem:
        if not self._types:
            return Problem("starting", retry_after_s=_STARTING_RETRY_S)
        variants = self._types.get(name)
        if variants is None:
            return invalid(Fault("#/type", "no such task type; GET /task-types lists them", "unknown-type"))
        faults = []
        for error in variants[0].validator.iter_errors(payload):
            faults.append(_fault(error))
            if len(faults) == MAX_FAULTS:
                break
        return invalid(*faults)


def _fault(error: jsonschema_rs.ValidationError) -> Fault:
    kind = error.kind
    path = ["payload", *error.instance_path]
    match kind:
        case jsonschema_rs.ValidationErrorKind.Required():
            return Fault(pointer(*path, kind.property), "required", "missing")
        case jsonschema_rs.ValidationErrorKind.AdditionalProperties():
            return Fault(pointer(*path, kind.unexpected[0]), "unknown field", "unknown-field")
    return Fault(pointer(*path), error.message[:120], kind.name)
