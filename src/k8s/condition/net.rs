//! IP addresses and networks in CIDR notation.
//!
//! Source: `k8s.io/apiserver/pkg/cel/library/{ip,cidr}.go`.

use core::net::IpAddr;
use std::fmt;

/// A network: an address, which may have bits after the prefix, and the length of the prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cidr {
    pub(super) address: IpAddr,
    /// In bits.
    pub(super) length: u8,
}

impl Cidr {
    /// Reads a network.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn parse(text: &str) -> Result<Self, &'static str> {
        let (address, length) = text.rsplit_once('/').ok_or("expected an address, a slash and a length")?;
        let address = parsed(address)?;
        let plain = length.bytes().all(|byte| byte.is_ascii_digit());
        let plain = plain && (length.len() == 1 || !length.starts_with('0'));
        let length = plain.then(|| length.parse().ok()).flatten().ok_or("bad bits after slash")?;
        if length > bits(address) {
            return Err("prefix length out of range");
        }
        Ok(Self { address, length })
    }

    /// The network without the bits after the prefix.
    pub(super) fn masked(self) -> Self {
        let after = u32::from(bits(self.address) - self.length);
        let address = match self.address {
            IpAddr::V4(address) => {
                IpAddr::V4((u32::from(address) & u32::MAX.checked_shl(after).unwrap_or(0)).into())
            }
            IpAddr::V6(address) => {
                IpAddr::V6((u128::from(address) & u128::MAX.checked_shl(after).unwrap_or(0)).into())
            }
        };
        Self { address, ..self }
    }

    /// Whether a network is within this one.
    pub(super) fn contains_all(self, other: Self) -> bool {
        self.length <= other.length && self.contains(other.address)
    }

    /// Whether an address is in the network. One of the other family never is.
    pub(super) fn contains(self, address: IpAddr) -> bool {
        bits(address) == bits(self.address) && Self { address, ..self }.masked() == self.masked()
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

fn bits(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// Reads an address.
///
/// # Errors
/// What is wrong with it.
pub(super) fn parsed(text: &str) -> Result<IpAddr, &'static str> {
    let address: IpAddr = text.parse().map_err(|_| "expected an IPv4 or IPv6 address without zone")?;
    let is_mapped = matches!(address, IpAddr::V6(address) if address.to_ipv4_mapped().is_some());
    if is_mapped { Err("an IPv4-mapped IPv6 address is not allowed") } else { Ok(address) }
}
