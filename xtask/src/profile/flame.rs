//! A flame graph: each stack of calls as a pile of bars, the outermost function at the bottom (Gregg, *The Flame
//! Graph*, CACM 59(6), 2016). A bar's width is the number of instructions in its function and its callees. The result
//! is one SVG file without external parts. A browser opens it. A click on a bar widens the bar to the whole width, and
//! a click beside the bars shows everything again.

use std::{collections::BTreeMap, fmt::Write as _};

/// The height of a bar, in pixels.
const HEIGHT: usize = 18;
/// The height above the bars.
const HEAD: usize = 58;
/// Narrower bars, by share of the whole, could not be seen or clicked. A million of them make a file that no browser
/// opens.
const LEAST: f64 = 0.0002;

/// A function at its place in the stacks.
struct Bar<'f> {
    name: &'f str,
    depth: usize,
    /// The count before the bar, in the order of the stacks, and the count of the bar with its callees.
    from: u64,
    count: u64,
}

/// Draws the stacks (outermost function first) under `title`. `unit` is the counted unit.
pub fn draw(stacks: &BTreeMap<Vec<&str>, u64>, title: &str, unit: &str) -> String {
    let total = stacks.values().sum::<u64>().max(1);
    let mut bars = bars(stacks);
    bars.retain(|b| b.count as f64 >= LEAST * total as f64);
    let levels = bars.iter().map(|b| b.depth + 1).max().unwrap_or(0);
    let height = HEAD + levels * HEIGHT + 8;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"100%\" height=\"{height}\" font-family=\"monospace\" font-size=\"12\">\n\
         <style>.f{{cursor:pointer}} .f:hover rect{{stroke:#000;stroke-width:2}}</style>\n\
         <rect id=\"all\" width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text x=\"8\" y=\"20\" font-size=\"15\">{}</text>\n",
        escaped(title)
    );
    legend(&mut svg, &bars);
    let percent = |n: u64| 100.0 * n as f64 / total as f64;
    for bar in &bars {
        let y = height - 8 - (bar.depth + 1) * HEIGHT;
        let (x, width, name) = (percent(bar.from), percent(bar.count), escaped(bar.name));
        let _ = writeln!(
            svg,
            "<svg class=\"f\" x=\"{x:.4}%\" y=\"{y}\" width=\"{width:.4}%\" height=\"{HEIGHT}\"><title>{name}\n{} {unit}, \
             {width:.2} %</title><rect width=\"100%\" height=\"{}\" fill=\"{}\" stroke=\"#fff\" \
             stroke-width=\"0.5\"/><text x=\"3\" y=\"13\">{}</text></svg>",
            bar.count,
            HEIGHT - 1,
            colour(bar.name),
            escaped(short(bar.name)),
        );
    }
    svg.push_str(SCRIPT);
    svg.push_str("</svg>\n");
    svg
}

/// Widens a bar to the whole width. Bars of its callees fill the width too, and bars beside it vanish.
const SCRIPT: &str = "<script><![CDATA[
const bars = [...document.querySelectorAll('.f')].map(e => ({ e, x: parseFloat(e.getAttribute('x')), w: parseFloat(e.getAttribute('width')) }));
function zoom(x, w) {
  for (const b of bars) {
    const below = b.x <= x + 1e-3 && b.x + b.w >= x + w - 1e-3;
    const from = below ? 0 : (b.x - x) / w * 100, width = below ? 100 : b.w / w * 100;
    b.e.style.display = from > -1e-3 && from + width < 100.01 ? '' : 'none';
    b.e.setAttribute('x', from + '%');
    b.e.setAttribute('width', width + '%');
  }
}
for (const b of bars) b.e.addEventListener('click', () => zoom(b.x, b.w));
document.getElementById('all').addEventListener('click', () => zoom(0, 100));
]]></script>
";

/// The bars of stacks, which are in order. Neighbouring bars of one function are joined.
fn bars<'f>(stacks: &BTreeMap<Vec<&'f str>, u64>) -> Vec<Bar<'f>> {
    let mut bars: Vec<Bar<'f>> = Vec::new();
    // Indices of the bars of the last stack.
    let mut open: Vec<usize> = Vec::new();
    let mut from = 0;
    for (stack, count) in stacks {
        let common = open.iter().zip(stack).take_while(|(bar, name)| bars[**bar].name == **name).count();
        open.truncate(common);
        for (depth, name) in stack.iter().enumerate().skip(common) {
            open.push(bars.len());
            bars.push(Bar { name, depth, from, count: 0 });
        }
        for bar in &open {
            bars[*bar].count += count;
        }
        from += count;
    }
    bars
}

/// The crate of a function, also where it is `<quire_vm::A as quire_sync::B>::c`.
fn crate_of(name: &str) -> &str {
    let path = name.trim_start_matches(['<', '&', '*', '[', '(']);
    let end = path.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(path.len());
    if path[end..].starts_with("::") { &path[..end] } else { "" }
}

/// The name without the crates' common beginning.
fn short(name: &str) -> &str {
    name.strip_prefix("quire_").unwrap_or(name)
}

/// The crates' hues, far from each other.
const HUES: &[(&str, u32)] = &[
    ("quire_kernel", 10),
    ("quire_linux", 45),
    ("quire_drivers", 80),
    ("quire_vm", 130),
    ("quire_pmap", 170),
    ("quire_pmap_x86_64", 190),
    ("quire_task", 215),
    ("quire_sync", 275),
    ("quire_fs", 320),
];

/// The colour of a function's bar, or grey for a function outside of our crates.
fn colour(name: &str) -> String {
    match HUES.iter().find(|(known, _)| *known == crate_of(name)) {
        Some((_, hue)) => format!("hsl({hue},70%,75%)"),
        None => "hsl(0,0%,82%)".into(),
    }
}

/// The legend of the crates in the graph and their colours.
fn legend(svg: &mut String, bars: &[Bar<'_>]) {
    let there = |name: &str| bars.iter().any(|b| crate_of(b.name) == name);
    let mut x = 8;
    for (name, _) in HUES.iter().filter(|(name, _)| there(name)).chain([&("others", 0)]) {
        let fill = colour(&format!("{name}::f"));
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"32\" width=\"12\" height=\"12\" fill=\"{fill}\"/><text x=\"{}\" y=\"42\">{name}</text>",
            x + 16
        );
        x += 16 + 8 * name.len() + 16;
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stacks<'f>(of: &[(&[&'f str], u64)]) -> BTreeMap<Vec<&'f str>, u64> {
        of.iter().map(|(stack, n)| (stack.to_vec(), *n)).collect()
    }

    #[test]
    fn a_bar_is_as_wide_as_its_instructions_and_those_above_it() {
        let all = stacks(&[(&["a"], 10), (&["a", "b"], 30), (&["a", "b", "c"], 20), (&["a", "c"], 5), (&["d"], 35)]);
        let found: Vec<_> = bars(&all).iter().map(|b| (b.name, b.depth, b.from, b.count)).collect();
        assert_eq!(found, [("a", 0, 0, 65), ("b", 1, 10, 50), ("c", 2, 40, 20), ("c", 1, 60, 5), ("d", 0, 65, 35)]);
    }

    #[test]
    fn the_drawing_is_well_formed_for_any_function_names() {
        let name = "<quire_vm::map::Map<\"M\"> as core::ops::Drop>::drop & more";
        let svg = draw(&stacks(&[(&["quire_linux::entry", name], 999_999), (&["trap"], 1)]), "a < b", "instructions");
        assert!(svg.contains("a &lt; b"), "{svg}");
        assert!(
            svg.contains("&lt;quire_vm::map::Map&lt;&quot;M&quot;&gt; as core::ops::Drop&gt;::drop &amp; more"),
            "{svg}"
        );
        // The bar is too narrow to be drawn.
        assert!(!svg.contains("trap"), "{svg}");
        for tag in ["svg", "title", "text", "script"] {
            let (open, close) = (svg.matches(&format!("<{tag}")).count(), svg.matches(&format!("</{tag}>")).count());
            assert_eq!(open, close, "{tag}: {svg}");
        }
        assert_eq!(crate_of(name), "quire_vm");
        assert_eq!((crate_of("trap_entry"), crate_of("memcpy")), ("", ""));
    }

    #[test]
    fn nothing_at_all_is_a_drawing_too() {
        assert!(draw(&BTreeMap::new(), "nothing", "instructions").ends_with("</svg>\n"));
    }
}
