"""The claims on a journal in a store, in its head."""

from __future__ import annotations

from msgspec.structs import replace

from djinn_jupyter.engine.persistence.lease import Claimant
from djinn_jupyter.engine.persistence.store.head import HeadObject, JournalHead, OpenClaim


class HeadClaims:
    """From a claim on, earlier engines change the head no more, but for ending their claims."""

    def __init__(self, head: HeadObject, where: str) -> None:
        self._head, self.where = head, where

    def claim(self, me: Claimant) -> int:
        def claimed(head: JournalHead) -> JournalHead:
            epoch = head.epoch + 1
            return replace(head, epoch=epoch, claimant=me, claims=(*head.claims, OpenClaim(epoch=epoch, claimant=me)))

        return self._head.change(claimed).epoch

    def later(self, epoch: int) -> Claimant | None:
        head = self._head.read()
        if head.epoch < epoch:
            raise OSError(f"the head of the journal in {self.where} is not there any more")
        return head.claimant if head.epoch > epoch else None

    def earlier(self, epoch: int) -> dict[int, bool]:
        return {one.epoch: one.claimant.is_gone for one in self._head.read().claims if one.epoch < epoch}

    def end(self, epoch: int) -> None:
        self._head.change(lambda head: _only(head, [one for one in head.claims if one.epoch != epoch]))

    def forget_earlier(self, epoch: int) -> None:
        self._head.change(lambda head: _only(head, [one for one in head.claims if one.epoch >= epoch]))


def _only(head: JournalHead, claims: list[OpenClaim]) -> JournalHead:
    return head if len(claims) == len(head.claims) else replace(head, claims=tuple(claims))
