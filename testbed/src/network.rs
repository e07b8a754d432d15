//! Addresses inside a bed. Each bed has a network of its own, so all beds use the same ones.

use std::net::Ipv4Addr;

use anyhow::Result;

use crate::realm::Realm;

/// The API server's service address; pods find it in `KUBERNETES_SERVICE_HOST`.
pub const SERVICE_IP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
/// The control plane's own address.
pub const CONTROL_PLANE_IP: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 1);

/// Address of the real node with this number, counted from 1.
pub(crate) fn node_ip(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 99, 0, 10 + number)
}

/// Pod subnet of the real node with this number.
pub(crate) fn pod_subnet(number: u8) -> String {
    format!("10.244.{number}.0/24")
}

/// Gives a new bed's network its addresses.
///
/// They all sit on the loopback device, and so does the default route: nothing can leave, and programs that look for the
/// machine's address find one. The service address needs no kube-proxy, since the API server listens on it.
pub(crate) fn set_up(realm: &Realm, nodes: u8) -> Result<()> {
    let own = (1..=nodes).map(node_ip);
    let addresses: Vec<String> =
        [SERVICE_IP, CONTROL_PLANE_IP].into_iter().chain(own).map(|ip| format!("{ip}/32")).collect();
    let script = "
ip link set lo up
for address in \"$@\"; do ip address add \"$address\" dev lo; done
ip route add default dev lo
echo 1 >/proc/sys/net/ipv4/ip_forward";
    let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
    realm.script(script, &addresses).map(drop)
}
