//! The functions on IP addresses and networks.
//!
//! Source: `k8s.io/apiserver/pkg/cel/library/{ip,cidr}.go`.

use core::net::IpAddr;

use super::super::function::{Arguments, Function};
use super::super::meter::Stop;
use super::super::net::{Cidr, parsed};
use super::super::value::Val;

pub(super) const FUNCTIONS: [Function; 16] = [
    Function::global("ip", 1, ip),
    Function::global("isIP", 1, is_ip),
    Function::global("ip.isCanonical", 1, is_canonical),
    Function::member("family", 1, family),
    Function::member("isUnspecified", 1, is_unspecified),
    Function::member("isLoopback", 1, is_loopback),
    Function::member("isLinkLocalMulticast", 1, is_link_local_multicast),
    Function::member("isLinkLocalUnicast", 1, is_link_local_unicast),
    Function::member("isGlobalUnicast", 1, is_global_unicast),
    Function::global("cidr", 1, cidr),
    Function::global("isCIDR", 1, is_cidr),
    Function::member("containsIP", 2, contains_ip),
    Function::member("containsCIDR", 2, contains_cidr),
    Function::member("ip", 1, ip_of_cidr),
    Function::member("prefixLength", 1, prefix_length),
    Function::member("masked", 1, masked),
];

fn ip_at(args: &Arguments<'_, '_>, at: usize) -> Result<IpAddr, Stop> {
    if let Val::Ip(address) = args.value(at)? { Ok(*address) } else { Err(Stop::NoOverload) }
}

fn cidr_at(args: &Arguments<'_, '_>, at: usize) -> Result<Cidr, Stop> {
    if let Val::Cidr(cidr) = args.value(at)? { Ok(*cidr) } else { Err(Stop::NoOverload) }
}

/// The address that a string argument is.
fn ip_in_text(args: &mut Arguments<'_, '_>, at: usize) -> Result<IpAddr, Stop> {
    let text = args.text(at)?;
    args.meter.read(text.len())?;
    parsed(text).map_err(|why| args.failed(text, why))
}

/// The network that a string argument is.
fn cidr_in_text(args: &mut Arguments<'_, '_>, at: usize) -> Result<Cidr, Stop> {
    let text = args.text(at)?;
    args.meter.read(text.len())?;
    Cidr::parse(text).map_err(|why| args.failed(text, why))
}

fn ip<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    ip_in_text(args, 0).map(Val::Ip)
}

fn is_ip<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    let text = args.text(0)?;
    args.meter.read(text.len())?;
    Ok(Val::Bool(parsed(text).is_ok()))
}

/// Whether an address is written as it is printed.
fn is_canonical<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    let address = ip_in_text(args, 0)?;
    Ok(Val::Bool(address.to_string() == **args.text(0)?))
}

fn family<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    Ok(Val::Int(if ip_at(args, 0)?.is_ipv4() { 4 } else { 6 }))
}

fn is_unspecified<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    Ok(Val::Bool(ip_at(args, 0)?.is_unspecified()))
}

fn is_loopback<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    Ok(Val::Bool(ip_at(args, 0)?.is_loopback()))
}

/// `224.0.0.0/24`, and `ff02::/16` with any flags.
fn is_link_local_multicast<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    Ok(Val::Bool(match ip_at(args, 0)? {
        IpAddr::V4(address) => address.octets().starts_with(&[224, 0, 0]),
        IpAddr::V6(address) => address.segments()[0] & 0xff0f == 0xff02,
    }))
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.segments()[0] & 0xffc0 == 0xfe80,
    }
}

fn is_link_local_unicast<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    Ok(Val::Bool(is_link_local(ip_at(args, 0)?)))
}

fn is_global_unicast<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    let address = ip_at(args, 0)?;
    let is_broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
    let is_other = address.is_unspecified() || address.is_loopback() || address.is_multicast();
    Ok(Val::Bool(!is_broadcast && !is_other && !is_link_local(address)))
}

fn cidr<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    cidr_in_text(args, 0).map(Val::Cidr)
}

fn is_cidr<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    let text = args.text(0)?;
    args.meter.read(text.len())?;
    Ok(Val::Bool(Cidr::parse(text).is_ok()))
}

fn contains_ip<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    let cidr = cidr_at(args, 0)?;
    let address = match ip_at(args, 1) {
        Err(Stop::NoOverload) => ip_in_text(args, 1)?,
        address => address?,
    };
    Ok(Val::Bool(cidr.contains(address)))
}

fn contains_cidr<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    let cidr = cidr_at(args, 0)?;
    let other = match cidr_at(args, 1) {
        Err(Stop::NoOverload) => cidr_in_text(args, 1)?,
        other => other?,
    };
    Ok(Val::Bool(cidr.contains_all(other)))
}

fn ip_of_cidr<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    Ok(Val::Ip(cidr_at(args, 0)?.address))
}

fn prefix_length<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    Ok(Val::Int(cidr_at(args, 0)?.length.into()))
}

fn masked<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    Ok(Val::Cidr(cidr_at(args, 0)?.masked()))
}

#[cfg(test)]
mod tests {
    use super::super::super::tests::{check_all, check_failures};

    #[test]
    fn addresses_follow_the_library() {
        check_all(&[
            "isIP('192.168.0.1') && isIP('2001:db8::68') && !isIP('192.168.0.1.0') && !isIP('2001:db8:::68')",
            "!isIP('127.0.0.256') && !isIP('::ffff:1.2.3.4') && !isIP('fe80::1%eth0') && !isIP('01.2.3.4') && !isIP('')",
            "ip.isCanonical('127.0.0.1') && ip.isCanonical('2001:db8::68') && ip.isCanonical('::')",
            "!ip.isCanonical('2001:DB8::68') && !ip.isCanonical('2001:db8::0:0:0:abcd') && !ip.isCanonical('::1.2.3.4')",
            "ip('192.168.0.1').family() == 4 && ip('2001:db8::68').family() == 6",
            "ip('0.0.0.0').isUnspecified() && ip('::').isUnspecified() && !ip('127.0.0.1').isUnspecified()",
            "ip('127.9.0.1').isLoopback() && ip('::1').isLoopback() && !ip('1.2.3.4').isLoopback()",
            "ip('224.0.0.1').isLinkLocalMulticast() && !ip('224.0.1.1').isLinkLocalMulticast()",
            "ip('ff02::1').isLinkLocalMulticast() && !ip('fd00::1').isLinkLocalMulticast()",
            "ip('169.254.169.254').isLinkLocalUnicast() && ip('fe80::1').isLinkLocalUnicast()",
            "!ip('192.168.0.1').isLinkLocalUnicast() && !ip('fd80::1').isLinkLocalUnicast()",
            "ip('192.168.0.1').isGlobalUnicast() && ip('2001:db8::abcd').isGlobalUnicast() && ip('fd00::1').isGlobalUnicast()",
            "!ip('255.255.255.255').isGlobalUnicast() && !ip('ff00::1').isGlobalUnicast() && !ip('224.0.0.1').isGlobalUnicast()",
            "string(ip('2001:DB8::68')) == '2001:db8::68' && type(ip('1.2.3.4')) == net.IP && ip('::1') == ip('0::1')",
            "ip('1.2.3.4') != ip('1.2.3.5') && ip('1.2.3.4') != null",
        ]);
        check_failures(&[
            ("ip('1.2.3.4') != '1.2.3.4'", "no such overload: net.IP != string"),
            ("'1.2.3.4' == ip('1.2.3.4')", "no such overload: string == net.IP"),
            ("ip('192.168.0.1.0').family() == 4", "ip(\"192.168.0.1.0\"): expected an IPv4 or IPv6 address"),
            ("ip('::ffff:1.2.3.4').family() == 4", "an IPv4-mapped IPv6 address is not allowed"),
            ("ip.isCanonical('127.0.0.1.0')", "ip.isCanonical(\"127.0.0.1.0\"): expected"),
            ("isIP(cidr('192.168.0.0/24'))", "no such overload: isIP(net.CIDR)"),
        ]);
    }

    #[test]
    fn networks_follow_the_library() {
        check_all(&[
            "isCIDR('192.168.0.0/16') && isCIDR('::1/128') && isCIDR('192.168.0.1/24') && isCIDR('0.0.0.0/0')",
            "!isCIDR('192.168.0.0/33') && !isCIDR('::1/129') && !isCIDR('192.168.0.0/') && !isCIDR('192.168.0.0')",
            "!isCIDR('1.2.3.4/08') && !isCIDR('1.2.3.4/+8') && !isCIDR('::ffff:1.2.3.4/24') && !isCIDR('1.2.3.4/256')",
            "cidr('192.168.0.0/24').containsIP(ip('192.168.0.1')) && cidr('192.168.0.0/24').containsIP('192.168.0.255')",
            "!cidr('192.168.0.0/24').containsIP('192.168.1.1') && !cidr('0.0.0.0/0').containsIP('::1')",
            "cidr('2001:db8::/32').containsIP('2001:db8::1') && !cidr('2001:db8::/32').containsIP('2001:dc8::1')",
            "cidr('192.168.0.0/24').containsCIDR(cidr('192.168.0.0/25')) && cidr('192.168.0.0/16').containsCIDR('192.168.10.0/24')",
            "!cidr('192.168.0.0/24').containsCIDR('192.168.0.0/23') && !cidr('192.168.1.0/24').containsCIDR('192.168.2.0/24')",
            "cidr('2001:db8::/32').containsCIDR('2001:db8::/33') && !cidr('2001:db8::/32').containsCIDR('2001:db8::/31')",
            "cidr('192.168.0.1/24').ip() == ip('192.168.0.1') && cidr('::1/128').ip().family() == 6",
            "cidr('192.168.0.1/24').masked() == cidr('192.168.0.0/24') && cidr('192.168.0.1/24') != cidr('192.168.0.0/24')",
            "cidr('2001:db8:1::/32').masked() == cidr('2001:db8::/32') && cidr('1.2.3.4/0').masked() == cidr('0.0.0.0/0')",
            "cidr('192.168.0.0/24').prefixLength() == 24 && cidr('::1/128').prefixLength() == 128",
            "string(cidr('192.168.0.0/24')) == '192.168.0.0/24' && type(cidr('1.2.3.0/24')) == net.CIDR",
            "object.spec.podIPs.exists(p, cidr('10.0.0.0/8').containsIP(p.ip))",
        ]);
        check_failures(&[
            ("cidr('192.168.0.0/').prefixLength() == 1", "cidr(\"192.168.0.0/\"): bad bits after slash"),
            ("cidr('1.2.3.4/33').prefixLength() == 1", "prefix length out of range"),
            ("cidr('10.0.0.0/8').containsIP('x')", "containsIP(\"x\"): expected an IPv4"),
            ("cidr('10.0.0.0/8').containsIP(1)", "no such overload: containsIP(net.CIDR, int)"),
        ]);
    }
}
