//! Pictures of docs/images: those that the command draws of a plan or a search, and the crates with their dependencies.

use crate::svg::{Anchor, Svg, point};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// Files of docs/images, and the arguments of the command that draws them. A test of the command reads the same list.
const DRAWN: &str = include_str!("../pictures.txt");

/// Draws all of them with the built command.
pub fn draw(root: &Path) -> Result<(), String> {
    let images = root.join("docs/images");
    let scratch = root.join("target/pictures");
    std::fs::create_dir_all(&scratch).map_err(|e| format!("{}: {e}", scratch.display()))?;
    for line in DRAWN.lines().filter(|line| !line.starts_with('#')) {
        let (names, arguments) = line.split_once(" | ").ok_or_else(|| format!("pictures.txt: no ` | ` in {line}"))?;
        let names: Vec<&str> = names.split(' ').collect();
        let file = images.join(format!("{}.svg", names[0]));
        let place = |word: &str| match word {
            "FILE" => file.display().to_string(),
            "FOLDER" => scratch.display().to_string(),
            word => word.to_string(),
        };
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.args(["run", "-q", "--bin", "tilewright", "--"]).args(arguments.split(' ').map(place));
        command.current_dir(root).env("TILEWRIGHT_RECORDS", scratch.join("records.sqlite"));
        if arguments.starts_with("tune") {
            // A search that goes on from an earlier one has fewer trials.
            let _ = std::fs::remove_file(scratch.join("records.sqlite"));
        }
        let ended = command.stdout(std::process::Stdio::null()).status().map_err(|e| format!("cargo: {e}"))?;
        if !ended.success() {
            return Err(format!("tilewright {arguments}: {ended}"));
        }
        if arguments.ends_with("FOLDER") {
            for name in names {
                let (from, to) = (scratch.join(format!("{name}.svg")), images.join(format!("{name}.svg")));
                std::fs::copy(&from, &to).map_err(|e| format!("{}: {e}", from.display()))?;
            }
        }
    }
    Ok(())
}

/// Crates with those that they depend on, without those that these depend on anyway.
pub struct Crates {
    below: BTreeMap<String, Vec<String>>,
}

impl Crates {
    /// From the manifests of the workspace.
    pub fn read(root: &Path) -> Result<Crates, String> {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args(["metadata", "--no-deps", "--offline", "--format-version", "1"]).current_dir(root);
        let output = cargo.output().map_err(|e| format!("cargo metadata: {e}"))?;
        let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).map_err(|e| format!("cargo metadata: {e}"))?;
        let short = |name: &str| name.strip_prefix("tilewright-").unwrap_or(name).to_string();
        let packages = metadata["packages"].as_array().ok_or("cargo metadata: no packages")?;
        let text = |value: &serde_json::Value| value.as_str().map(String::from);
        let name = |package: &serde_json::Value| text(&package["name"]).filter(|name| name.starts_with("tilewright"));
        let names: Vec<String> = packages.iter().filter_map(name).collect();
        let mut below: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for package in packages {
            let Some(own) = name(package) else { continue };
            let dependencies = package["dependencies"].as_array().map(Vec::as_slice).unwrap_or_default();
            // Those of tests and build scripts have a kind.
            let normal = dependencies.iter().filter(|d| d["kind"].is_null()).filter_map(|d| text(&d["name"]));
            below.insert(short(&own), normal.filter(|d| names.contains(d) && *d != own).map(|d| short(&d)).collect());
        }
        Ok(Crates::reduced(below))
    }

    fn reduced(all: BTreeMap<String, Vec<String>>) -> Crates {
        let whole = Crates { below: all };
        let kept = |list: &Vec<String>| {
            let others = |name: &String| list.iter().any(|other| other != name && whole.reaches(other, name));
            list.iter().filter(|name| !others(name)).cloned().collect()
        };
        Crates { below: whole.below.iter().map(|(name, list)| (name.clone(), kept(list))).collect() }
    }

    fn reaches(&self, from: &str, to: &str) -> bool {
        self.below.get(from).is_some_and(|list| list.iter().any(|next| next == to || self.reaches(next, to)))
    }

    /// The length of the longest chain of crates below one.
    fn layer(&self, name: &str) -> usize {
        self.below.get(name).and_then(|list| list.iter().map(|next| self.layer(next) + 1).max()).unwrap_or(0)
    }

    /// Draws them, a crate above those that it depends on.
    pub fn svg(&self) -> String {
        let (wide, box_w, box_h, apart) = (700.0, 108.0, 36.0, 84.0);
        let most = self.below.keys().map(|name| self.layer(name)).max().unwrap_or(0);
        // A dependency that skips layers has a place in each of them, so that no box is in its way.
        let mut layers: Vec<Vec<Place>> = vec![Vec::new(); most + 1];
        for (name, list) in &self.below {
            let own = self.layer(name);
            layers[own].push(Place { of: name.clone(), to: None });
            for next in list {
                for layer in layers.iter_mut().take(own).skip(self.layer(next) + 1) {
                    layer.push(Place { of: name.clone(), to: Some(next.clone()) });
                }
            }
        }
        let mut at: BTreeMap<(usize, Place), f64> = BTreeMap::new();
        for (number, layer) in layers.iter_mut().enumerate() {
            // Above the middle of what it depends on.
            let key = |place: &Place| -> f64 {
                let below: Vec<f64> = self.steps(place, number).iter().filter_map(|step| at.get(step)).copied().collect();
                below.iter().sum::<f64>() / below.len().max(1) as f64
            };
            let keys: BTreeMap<Place, f64> = layer.iter().map(|place| (place.clone(), key(place))).collect();
            layer.sort_by(|a, b| keys[a].total_cmp(&keys[b]).then(a.cmp(b)));
            let share = wide / layer.len() as f64;
            let places = layer.iter().enumerate();
            at.extend(places.map(|(i, place)| ((number, place.clone()), share * (i as f64 + 0.5))));
        }
        let y = |layer: usize| 20.0 + apart * (most - layer) as f64;
        let mut svg = Svg::default();
        for (name, list) in &self.below {
            let own = self.layer(name);
            for next in list {
                let x = |layer: usize, place: Place| at.get(&(layer, place)).copied().unwrap_or_default();
                let mut points = vec![point(x(own, Place { of: name.clone(), to: None }), y(own) + box_h)];
                for layer in (self.layer(next) + 1..own).rev() {
                    let through = x(layer, Place { of: name.clone(), to: Some(next.clone()) });
                    points.extend([point(through, y(layer)), point(through, y(layer) + box_h)]);
                }
                let end = self.layer(next);
                points.push(point(x(end, Place { of: next.clone(), to: None }), y(end)));
                svg.arrow(&points);
            }
        }
        for ((layer, place), x) in at.iter().filter(|((_, place), _)| place.to.is_none()) {
            svg.card(x - box_w / 2.0, y(*layer), box_w, box_h);
            svg.text(point(*x, y(*layer) + 23.0), 14.0, Anchor::Middle, "h2", &place.of);
        }
        svg.document(wide, y(0) + box_h + 20.0, "The crates: an arrow points to a dependency")
    }

    /// The places in the layer below that a place is connected to.
    fn steps(&self, place: &Place, layer: usize) -> Vec<(usize, Place)> {
        let Some(under) = layer.checked_sub(1) else { return Vec::new() };
        let step = |next: &String| {
            let to = (self.layer(next) != under).then(|| next.clone());
            let of = if to.is_some() { place.of.clone() } else { next.clone() };
            (under, Place { of, to })
        };
        match &place.to {
            Some(next) => vec![step(next)],
            None => self.below.get(&place.of).map(|list| list.iter().map(step).collect()).unwrap_or_default(),
        }
    }
}

/// A crate in its layer, or the way of one of its dependencies through a layer between.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    of: String,
    to: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_direct_dependencies_are_drawn() {
        let list = |names: &[&str]| names.iter().map(|n| n.to_string()).collect::<Vec<_>>();
        let all =
            [("a", list(&[])), ("b", list(&["a"])), ("c", list(&["a", "b"])), ("d", list(&["a"])), ("e", list(&["c", "d"]))];
        let crates = Crates::reduced(all.map(|(name, below)| (name.to_string(), below)).into());
        assert_eq!(crates.below["c"], ["b"]);
        assert_eq!(crates.layer("e"), 3);
        let svg = crates.svg();
        assert_eq!((svg.matches("class=\"way\"").count(), svg.matches("class=\"card\"").count()), (5, 5));
    }
}
