"""The ledger and its debts: pure decisions."""

from __future__ import annotations

import pytest

from placewire.agent.contract.entries import Address, Sysctl
from placewire.agent.contract.state import ForeignEntry, Ledger, ObservedState, TakenOver
from placewire.agent.reconcile.diff import difference
from placewire.agent.reconcile.ledger import (
    extended,
    owed_refusals,
    owed_sentences,
    payable,
    payment,
    settled,
    waiting_sentences,
)
from placewire.agent.reconcile.not_as_before import (
    given_back,
    lost_route_sentences,
    second_address_sentences,
)
from placewire.agent.reconcile.steps import EntryStep, NicStep
from tests.agent.observed_states import BARE, nic
from tests.agent.states import desired_state

ARP_IGNORE = "net.ipv4.conf.nic0.arp_ignore"
WAS = Sysctl(name=ARP_IGNORE, value="0")
LEDGER = Ledger(
    nics=(TakenOver(nic="nic0", mac="02:00:00:00:00:01", addresses=("10.7.0.1/24",)),),
    sysctls=(WAS,),
)
WITHOUT_NIC = ObservedState(nics=(nic("nic1"),))


def debt_of_nic0() -> Ledger:
    return settled(None, WITHOUT_NIC, LEDGER)


def test_what_an_absent_nic_held_becomes_a_debt_with_its_sysctls() -> None:
    ledger = debt_of_nic0()
    assert not ledger.nics and not ledger.sysctls
    (debt,) = ledger.owed
    assert debt.addresses == ("10.7.0.1/24",) and debt.sysctls == (WAS,)
    assert settled(None, WITHOUT_NIC, ledger) == ledger, "a debt stays"
    (sentence,) = owed_sentences(ledger)
    (refusal,) = owed_refusals("s1", ledger)
    for text in (sentence, refusal.sentence):
        assert "nic0" in text and "10.7.0.1/24" in text and f"{ARP_IGNORE} = 0" in text


def test_a_route_whose_source_is_gone_is_not_given_back_and_told() -> None:
    """The kernel refuses it for ever: an undo never came to its end."""
    plain, sourced = "10.60.0.0/16 via 10.7.0.2 dev nic0", "10.61.0.0/16 dev nic0 src 192.168.1.5"
    taken = LEDGER.nics[0].model_copy(update={"routes": (plain, sourced)})
    ledger = LEDGER.model_copy(update={"nics": (taken,)})
    bare = ObservedState(nics=(nic("nic0"),), sysctls=(WAS,))
    (back,) = difference(None, bare, ledger)
    assert isinstance(back, NicStep) and back.held.routes == (plain,)
    given = nic("nic0", "10.7.0.1/24").model_copy(update={"routes": (plain,)})
    done = bare.model_copy(update={"nics": (given,)})
    assert difference(None, done, ledger) == () and settled(None, done, ledger) == Ledger()
    (told,) = lost_route_sentences(None, done, ledger)
    assert sourced in told and "192.168.1.5" in told
    of_lo = Address(interface="lo", address="192.168.1.5/32")
    over_the_bridge = sourced.replace("nic0", "pw-nic0")
    for there in ({"addresses_elsewhere": (of_lo,)}, {"bridge_routes": (over_the_bridge,)}):
        (back,) = difference(None, bare.model_copy(update=there), ledger)
        assert isinstance(back, NicStep) and back.held.routes == (plain, sourced)
        assert lost_route_sentences(None, done.model_copy(update=there), ledger) == ()


def test_an_address_that_is_back_after_one_of_others_in_its_subnet_is_told() -> None:
    """The kernel removes it with theirs (a VIP that moves on), though it was there before."""
    taken = given_back(None, BARE, LEDGER)
    (told,) = second_address_sentences(
        taken, ObservedState(nics=(nic("nic0", "192.168.5.1/24", "10.7.0.50/24", "10.7.0.1/24"),))
    )
    assert "nic0 has 10.7.0.1/24 back after 10.7.0.50/24" in told
    for addresses in (
        ("10.7.0.1/24", "10.7.0.50/24"),
        ("10.7.0.50/32", "fd00::1/64", "10.7.0.1/24"),
    ):
        there = ObservedState(nics=(nic("nic0", *addresses),))
        assert second_address_sentences(taken, there) == ()
    assert given_back(desired_state(2, nics=("nic0",)), BARE, LEDGER) == ()


def test_a_payment_gives_all_and_nothing_twice() -> None:
    ledger = debt_of_nic0()
    changed = Sysctl(name=ARP_IGNORE, value="1")
    back = ObservedState(nics=(nic("nic0", up=False),), sysctls=(changed,))
    assert payable(None, back, ledger) == ledger.owed
    sysctl, addresses = payment(ledger.owed, back)
    assert isinstance(sysctl, EntryStep) and sysctl.after == WAS
    assert isinstance(addresses, NicStep) and addresses.held.addresses == ("10.7.0.1/24",)
    given = ObservedState(nics=(nic("nic0", "10.7.0.1/24"),), sysctls=(WAS,))
    assert payment(ledger.owed, given) == ()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"mac": "02:00:00:00:00:02"}, "another NIC has its name"),
        ({"name": "nic9"}, "it was renamed"),
        ({"bridge": "br0"}, "it is somebody's port"),
    ],
)
def test_nothing_is_paid_to_a_nic_that_is_not_the_one_or_not_free(
    changes: dict[str, str], why: str
) -> None:
    here = nic("nic0").model_copy(update=changes)
    assert payable(None, ObservedState(nics=(here,)), debt_of_nic0()) == (), why


def test_a_state_that_takes_a_nic_over_again_knows_what_it_is_owed() -> None:
    desired = desired_state(2, nics=("nic0",))
    ledger = extended(desired, ObservedState(nics=(nic("nic0"),)), debt_of_nic0())
    assert not ledger.owed and WAS in ledger.sysctls
    assert ledger.nics[0].addresses == ("10.7.0.1/24",)


def test_a_nic_that_may_not_be_taken_over_keeps_its_addresses() -> None:
    desired = desired_state(1, nics=("nic0",)).model_copy(update={"take_over": ()})
    (taken,) = extended(desired, BARE, Ledger()).nics
    assert taken.addresses == ()


def test_a_nic_that_is_back_is_its_owners() -> None:
    """It was down and bare when a plan took it; now its owner uses it."""
    debt = TakenOver(nic="nic0", mac="02:00:00:00:00:01", addresses=(), was_up=False)
    used = nic("nic0", "10.8.0.1/24")
    assert payment((debt,), ObservedState(nics=(used,))) == (), "it is not set down"


def test_a_nic_that_was_moved_away_as_our_port_does_not_stay_promiscuous() -> None:
    """It lost its queues by that, so that nothing else shows that it was our port."""
    debt = TakenOver(nic="nic0", mac="02:00:00:00:00:01", addresses=(), was_up=False)
    back = nic("nic0", "10.8.0.1/24", promiscuous=True)
    (step,) = payment((debt,), ObservedState(nics=(back,)))
    assert isinstance(step, NicStep) and not step.held.was_promiscuous and step.held.was_up


HERE = nic("nic0")


@pytest.mark.parametrize(
    ("elsewhere", "at"),
    [
        (ObservedState(nics=(HERE, nic("nic2", "10.7.0.1/16"))), "10.7.0.1/16 is on nic2"),
        (
            ObservedState(
                nics=(HERE,), addresses=(Address(interface="pw-nic2", address="10.7.0.1/24"),)
            ),
            "10.7.0.1/24 is on pw-nic2",
        ),
        (
            ObservedState(
                nics=(HERE,), addresses_elsewhere=(Address(interface="lo", address="10.7.0.1/32"),)
            ),
            "10.7.0.1/32 is on lo",
        ),
        (
            ObservedState(
                nics=(HERE,),
                foreign=(ForeignEntry(collection="addresses", key="pw-nic2 10.7.0.1/24", text="",
                                      on="pw-nic2"),),
            ),
            "10.7.0.1/24 is on pw-nic2",
        ),
    ],
)  # fmt: skip
def test_an_address_that_is_in_use_elsewhere_is_not_given_back_yet(
    elsewhere: ObservedState, at: str
) -> None:
    ledger = debt_of_nic0()
    assert payable(None, elsewhere, ledger) == ()
    (told,) = waiting_sentences(None, elsewhere, ledger)
    assert told.startswith("NIC nic0 ") and told.endswith(f"waits for it: {at}")
    alone = ObservedState(nics=(HERE,))
    assert payable(None, alone, ledger) == ledger.owed and not waiting_sentences(
        None, alone, ledger
    )
    assert "in use elsewhere" in owed_refusals("s1", ledger)[0].what
