"""The cluster's authority, checked with a verifier of certificate chains that is not ours."""

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from rhinoctl.config.authority import (
    AUTHORITY_DAYS,
    CERTIFICATE_DAYS,
    Authority,
    Issued,
    expires,
    issue,
    make_authority,
)
from rhinoctl.errors import UsageError

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
PROD = make_authority("prod", now=NOW)


def agent(authority: Authority = PROD, *hosts: str, now: datetime = NOW) -> Issued:
    return issue(authority, name="w1", role="agent", hosts=hosts or ("w1",), now=now)


def verify(
    issued: Issued, subject: x509.GeneralName, authority: Authority = PROD, at: datetime = NOW
) -> None:
    """As a client does that wants `subject`; raises VerificationError."""
    store = Store([x509.load_pem_x509_certificate(authority.certificate)])
    assert isinstance(subject, x509.DNSName | x509.IPAddress)
    verifier = PolicyBuilder().store(store).time(at).build_server_verifier(subject)
    verifier.verify(x509.load_pem_x509_certificate(issued.certificate), [])


@pytest.mark.parametrize(
    ("host", "subject"),
    [
        ("w1", x509.DNSName("w1")),
        ("W1.Example.ORG", x509.DNSName("w1.example.org")),
        ("bücher.example", x509.DNSName("xn--bcher-kva.example")),
        ("10.0.0.7", x509.IPAddress(ip_address("10.0.0.7"))),
        ("fe80::7", x509.IPAddress(ip_address("fe80::7"))),
        ("[fe80::7]", x509.IPAddress(ip_address("fe80::7"))),
    ],
)
def test_a_certificate_is_for_its_hosts_only(host: str, subject: x509.GeneralName) -> None:
    issued = agent(PROD, "another", host, host)
    verify(issued, subject)
    with pytest.raises(VerificationError):
        verify(issued, x509.DNSName("w2"))


def test_two_authorities_of_one_name_do_not_trust_each_other() -> None:
    with pytest.raises(VerificationError):
        verify(agent(), x509.DNSName("w1"), make_authority("prod", now=NOW))


def test_a_certificate_issues_no_other() -> None:
    """Path length 0, and no authority: an agent's key does not make one a cluster."""
    forger = agent()
    forged = agent(Authority(forger.certificate, forger.key), "w2")
    with pytest.raises(VerificationError):
        verify(forged, x509.DNSName("w2"), Authority(forger.certificate, forger.key))
    authority = x509.load_pem_x509_certificate(PROD.certificate)
    constraints = authority.extensions.get_extension_for_class(x509.BasicConstraints)
    assert constraints.critical
    assert constraints.value == x509.BasicConstraints(ca=True, path_length=0)


def test_it_holds_a_while_before_and_for_years() -> None:
    """Clocks of hosts differ by minutes."""
    issued = agent()
    end = NOW + timedelta(days=CERTIFICATE_DAYS)
    assert expires(issued.certificate) == end
    assert expires(PROD.certificate) == NOW + timedelta(days=AUTHORITY_DAYS)
    for at in (NOW - timedelta(minutes=30), end - timedelta(seconds=1)):
        verify(issued, x509.DNSName("w1"), at=at)
    for at in (NOW - timedelta(days=1), end + timedelta(seconds=1)):
        with pytest.raises(VerificationError):
            verify(issued, x509.DNSName("w1"), at=at)


def test_it_does_not_outlive_its_authority() -> None:
    late = NOW + timedelta(days=AUTHORITY_DAYS - 1)
    assert expires(agent(PROD, "w1", now=late).certificate) == expires(PROD.certificate)


def test_who_has_no_host_may_only_call() -> None:
    person = issue(PROD, name="someone", role="operator", hosts=(), now=NOW)
    both = {ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH}
    for issued, usages in ((person, {ExtendedKeyUsageOID.CLIENT_AUTH}), (agent(), both)):
        found = x509.load_pem_x509_certificate(issued.certificate)
        usage = found.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        assert set(usage) == usages


def test_the_subject_tells_people_what_it_is_of() -> None:
    issued = issue(PROD, name="w" * 80, role="agent", hosts=("w1",), now=NOW)
    subject = x509.load_pem_x509_certificate(issued.certificate).subject
    told = {
        kind: subject.get_attributes_for_oid(kind)[0].value
        for kind in (
            NameOID.ORGANIZATION_NAME,
            NameOID.ORGANIZATIONAL_UNIT_NAME,
            NameOID.COMMON_NAME,
        )
    }
    assert list(told.values()) == ["prod", "agent", "w" * 64]


def test_keys_are_not_shown() -> None:
    assert "PRIVATE" in PROD.key.reveal()
    assert "PRIVATE" not in f"{PROD!r} {agent()!r}"


@pytest.mark.parametrize("host", ["", "a..b", "ä" * 80])
def test_a_host_that_no_certificate_can_name(host: str) -> None:
    with pytest.raises(UsageError):
        agent(PROD, "w1", host)


def test_what_is_no_certificate_does_not_expire() -> None:
    with pytest.raises(UsageError):
        expires(b"-----BEGIN CERTIFICATE-----\n")
