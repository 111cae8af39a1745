//! The tree of served files: the kernel's directories and links, around the driver's attributes.
//!
//! ```text
//! devices/pci0000:6a/0000:6a:01.0/config             the PCI function of a device; bound into /sys/devices
//! devices/pci0000:6a/0000:6a:01.0/dsa0/wq0.0/size    attributes of a device
//! bus/devices/{dsa0,group0.0,engine0.0,wq0.0}        links to them; bound on /sys/bus/dsa
//! bus/drivers/{idxd,user,dmaengine,dsa}              bind, unbind, links to bound objects
//! module                                             bound on /sys/module/idxd
//! dev/wq0.0                                          enabled queues; bound on /dev/dsa
//! char/240:0                                         links to them; bound on /dev/char
//! ```
//!
//! Source: Linux `drivers/base/bus.c` (links), `drivers/dma/idxd/sysfs.c` (names), `cdev.c` (`dsa!wq0.0`).

use std::collections::BTreeMap;

use memferry_dsa::internals::system::Files;
use memferry_dsa::system::{DeviceId, QueueId};
use memferry_dsa_emulator::FakeDriver;

use crate::pci;

const DEVICES: &str = "sys/bus/dsa/devices";
const DRIVERS: &str = "sys/bus/dsa/drivers";

/// PCI bus numbers of the devices of a two-socket Xeon Max.
///
/// Source: `lspci` of Sapphire Rapids machines; the second socket repeats the pattern in the upper half.
const BUSES: [u8; 8] = [0x6a, 0x6f, 0x74, 0x79, 0xe7, 0xec, 0xf1, 0xf6];

/// A file, link or directory of the tree.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Node {
    Directory(Vec<String>),
    /// An attribute of the driver: its path there.
    Attribute {
        path: String,
        mode: u32,
    },
    /// A read-only file with a fixed text.
    Text(String),
    /// A read-only file with fixed bytes.
    Bytes(Vec<u8>),
    Link(String),
    Queue(QueueId),
}

/// The whole tree, by path. Its root is not visible to programs.
#[derive(Debug)]
pub(crate) struct Layout {
    nodes: BTreeMap<String, Node>,
}

/// Returns the directory in `/sys/devices` that contains a device.
pub(crate) fn bus(index: usize) -> String {
    // Devices beyond the buses of one machine get further PCI domains.
    format!("pci{:04x}:{:02x}", index / BUSES.len(), BUSES[index % BUSES.len()])
}

/// Returns the PCI address of a device, the name of its directory in [`bus`].
pub(crate) fn pci_address(index: usize) -> String {
    format!("{}:01.0", bus(index).trim_start_matches("pci"))
}

fn home(index: usize, device: DeviceId) -> String {
    format!("devices/{}/{}/{device}", bus(index), pci_address(index))
}

/// Returns the relative path to `/sys` from a directory that is this many components below it.
fn parents(components: usize) -> String {
    "../".repeat(components)
}

impl Layout {
    /// Builds the tree for the present state of the driver. `links` are the entries of the real `/dev/char`.
    pub(crate) fn new(driver: &FakeDriver, devices: &[DeviceId], links: &[(String, String)]) -> Layout {
        let mut layout = Layout { nodes: BTreeMap::from([(String::new(), Node::Directory(Vec::new()))]) };
        let homes: BTreeMap<DeviceId, String> =
            devices.iter().enumerate().map(|(index, device)| (*device, home(index, *device))).collect();
        for directory in ["bus/devices", "bus/drivers", "dev", "char", "module/parameters", "module/drivers"]
        {
            layout.directory(directory);
        }
        for (name, target) in links {
            layout.insert(&format!("char/{name}"), Node::Link(target.clone()));
        }
        for (file, text) in
            [("initstate", "live"), ("refcnt", "0"), ("parameters/sva", "Y"), ("parameters/tc_override", "N")]
        {
            layout.insert(&format!("module/{file}"), Node::Text(text.to_owned()));
        }
        for path in driver.paths() {
            let attribute = Node::Attribute { mode: driver.mode(&path), path: path.clone() };
            if let Some(place) = path.strip_prefix(DRIVERS) {
                layout.insert(&format!("bus/drivers{place}"), attribute);
            } else if let Some(place) = path.strip_prefix(&format!("{DEVICES}/")) {
                let Some((device, place)) = place.split_once('/') else { continue };
                let home = device.parse().ok().and_then(|device: DeviceId| homes.get(&device));
                if let Some(home) = home {
                    layout.insert(&format!("{home}/{place}"), attribute);
                }
            }
        }
        for name in driver.entries(DRIVERS).unwrap_or_default() {
            layout.insert(
                &format!("bus/drivers/{name}/module"),
                Node::Link(format!("{}module/idxd", parents(4))),
            );
            layout.insert(
                &format!("module/drivers/dsa:{name}"),
                Node::Link(format!("{}bus/dsa/drivers/{name}", parents(3))),
            );
        }
        for (index, device) in devices.iter().enumerate() {
            layout.device(driver, index, *device, &homes[device]);
        }
        layout
    }

    fn device(&mut self, driver: &FakeDriver, index: usize, device: DeviceId, home: &str) {
        let (function, _) = home.rsplit_once('/').unwrap_or((home, ""));
        for (file, content) in [
            ("vendor", "0x8086"),
            ("device", "0x0b25"),
            ("subsystem_vendor", "0x8086"),
            ("subsystem_device", "0x0000"),
            ("class", "0x088000"),
            ("revision", "0x00"),
            ("irq", "0"),
            ("enable", "1"),
            ("modalias", "pci:v00008086d00000B25sv00008086sd00000000bc08sc80i00"),
            ("resource", &pci::resource(index)),
            ("numa_node", &text(driver, &format!("{DEVICES}/{device}/numa_node"))),
        ] {
            self.insert(&format!("{function}/{file}"), Node::Text(content.to_owned()));
        }
        let has_pasid = text(driver, &format!("{DEVICES}/{device}/pasid_enabled")) == "1";
        self.insert(&format!("{function}/config"), Node::Bytes(pci::config(index, has_pasid)));
        let objects = self.names(home).unwrap_or_default().to_vec();
        self.object(driver, home, &device.to_string(), &format!("{DEVICES}/{device}"));
        for object in objects {
            let place = format!("{home}/{object}");
            if !matches!(self.nodes.get(&place), Some(Node::Directory(_))) {
                continue;
            }
            self.object(driver, &place, &object, &format!("{DEVICES}/{device}/{object}"));
            if let Ok(queue) = object.parse::<QueueId>()
                && driver.owner(&format!("dev/dsa/{queue}")).is_ok()
            {
                self.queue(driver, &place, queue);
            }
        }
    }

    /// Adds the links between an object, its bus and its driver.
    fn object(&mut self, driver: &FakeDriver, place: &str, name: &str, path: &str) {
        let components = place.split('/').count();
        self.insert(&format!("{place}/subsystem"), Node::Link(format!("{}bus/dsa", parents(components))));
        self.insert(&format!("bus/devices/{name}"), Node::Link(format!("{}{place}", parents(3))));
        let target = driver.target(&format!("{path}/driver"));
        let bound = target.as_deref().and_then(|target| target.rsplit('/').next());
        let mut event = "DEVTYPE=dsa\n".to_owned();
        if let Some(bound) = bound {
            self.insert(
                &format!("{place}/driver"),
                Node::Link(format!("{}bus/dsa/drivers/{bound}", parents(components))),
            );
            self.insert(&format!("bus/drivers/{bound}/{name}"), Node::Link(format!("{}{place}", parents(4))));
            event += &format!("DRIVER={bound}\n");
        }
        self.insert(&format!("{place}/uevent"), Node::Text(event + "MODALIAS=dsa:t0"));
    }

    /// Adds the files of the character device of a queue.
    fn queue(&mut self, driver: &FakeDriver, place: &str, queue: QueueId) {
        let number = |path: &str| text(driver, &format!("{DEVICES}/{}/{path}", queue.device));
        let (major, minor) = (number("cdev_major"), number(&format!("{queue}/cdev_minor")));
        let name = format!("dsa!{queue}");
        let cdev = format!("{place}/{name}");
        let components = cdev.split('/').count();
        self.insert(&format!("{cdev}/dev"), Node::Text(format!("{major}:{minor}")));
        self.insert(
            &format!("{cdev}/uevent"),
            Node::Text(format!("MAJOR={major}\nMINOR={minor}\nDEVNAME=dsa/{queue}")),
        );
        self.insert(&format!("{cdev}/subsystem"), Node::Link(format!("{}bus/dsa", parents(components))));
        self.insert(&format!("bus/devices/{name}"), Node::Link(format!("{}{cdev}", parents(3))));
        self.insert(&format!("dev/{queue}"), Node::Queue(queue));
        self.insert(&format!("char/{major}:{minor}"), Node::Link(format!("../dsa/{queue}")));
    }

    /// Returns the node at a path.
    pub(crate) fn node(&self, path: &str) -> Option<&Node> {
        self.nodes.get(path)
    }

    /// Returns the names in a directory.
    pub(crate) fn names(&self, directory: &str) -> Option<&[String]> {
        match self.nodes.get(directory)? {
            Node::Directory(names) => Some(names),
            _ => None,
        }
    }

    fn directory(&mut self, path: &str) {
        if !self.nodes.contains_key(path) {
            self.insert(path, Node::Directory(Vec::new()));
        }
    }

    fn insert(&mut self, path: &str, node: Node) {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        self.directory(parent);
        if self.nodes.insert(path.to_owned(), node).is_none()
            && let Some(Node::Directory(names)) = self.nodes.get_mut(parent)
        {
            names.push(name.to_owned());
        }
    }
}

/// Returns an attribute without its newline; empty if it cannot be read.
fn text(driver: &FakeDriver, path: &str) -> String {
    let bytes = driver.read(path).unwrap_or_default();
    String::from_utf8_lossy(&bytes).trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use memferry_dsa_emulator::FakeDevice;

    fn layout(driver: &FakeDriver) -> Layout {
        Layout::new(driver, &[DeviceId(0), DeviceId(2)], &[("1:3".to_owned(), "../null".to_owned())])
    }

    fn driver() -> FakeDriver {
        FakeDriver::new(&[0, 2].map(|number| FakeDevice::complete(DeviceId(number), 0)))
    }

    /// Resolves a link by its text.
    fn resolve(layout: &Layout, path: &str) -> Option<String> {
        let Some(Node::Link(target)) = layout.node(path) else { return None };
        // The bus is bound one directory deeper than it is in the tree.
        let place = path.strip_prefix("bus/").map_or(path.to_owned(), |rest| format!("bus/dsa/{rest}"));
        let place = place.strip_prefix("module/").map_or(place.clone(), |rest| format!("module/idxd/{rest}"));
        let mut parts: Vec<&str> = place.split('/').collect();
        parts.pop();
        for part in target.split('/') {
            match part {
                ".." => drop(parts.pop()?),
                part => parts.push(part),
            }
        }
        Some(parts.join("/").replace("bus/dsa", "bus").replace("module/idxd", "module"))
    }

    #[test]
    fn every_link_leads_to_something() {
        let driver = driver();
        let write = |path: &str, value: &str| driver.write(&format!("sys/bus/dsa/{path}"), value).unwrap();
        write("devices/dsa2/engine2.0/group_id", "0");
        for (attribute, value) in [
            ("group_id", "0"),
            ("mode", "shared"),
            ("size", "16"),
            ("threshold", "16"),
            ("priority", "1"),
            ("type", "user"),
            ("name", "x"),
            ("driver_name", "user"),
        ] {
            write(&format!("devices/dsa2/wq2.3/{attribute}"), value);
        }
        assert!(layout(&driver).node("dev/wq2.3").is_none(), "not enabled yet");
        write("drivers/idxd/bind", "dsa2");
        write("drivers/user/bind", "wq2.3");

        let layout = layout(&driver);
        let mut links = 0;
        for (path, node) in &layout.nodes {
            if !matches!(node, Node::Link(_)) || path.starts_with("char/") {
                continue;
            }
            links += 1;
            let target = resolve(&layout, path).unwrap_or_else(|| panic!("{path} leaves /sys"));
            assert!(layout.node(&target).is_some(), "{path} -> {target}");
        }
        assert!(links > 2 * (1 + 4 + 4 + 8), "{links}");
        assert_eq!(layout.node("dev/wq2.3"), Some(&Node::Queue(DeviceId(2).queue(3))));
        assert_eq!(layout.node("char/240:0"), Some(&Node::Link("../dsa/wq2.3".to_owned())));
        assert_eq!(layout.node("char/1:3"), Some(&Node::Link("../null".to_owned())));
        let home = "devices/pci0000:6f/0000:6f:01.0/dsa2";
        assert_eq!(resolve(&layout, "bus/devices/wq2.3").unwrap(), format!("{home}/wq2.3"));
        assert_eq!(resolve(&layout, &format!("{home}/wq2.3/driver")).unwrap(), "bus/drivers/user");
        assert!(layout.names("bus/devices").unwrap().contains(&"dsa!wq2.3".to_owned()));
    }
}
