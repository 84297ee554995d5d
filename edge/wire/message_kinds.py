"""All messages that can travel in a frame, and what there is to know of each type."""

from __future__ import annotations

from typing import Any

from edge.wire import ckks_messages, messages, secagg_messages
from edge.wire.ckks_messages import CkksMessage
from edge.wire.messages import Message, MessageKind
from edge.wire.secagg_messages import SecAggMessage

AnyMessage = Message | SecAggMessage | CkksMessage
"""All that can travel in a frame."""

KINDS: dict[type[Any], MessageKind] = {**messages.KINDS, **secagg_messages.KINDS, **ckks_messages.KINDS}
"""Code on the wire, event and stage of every type of message."""
