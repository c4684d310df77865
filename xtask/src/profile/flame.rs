//! A flame graph: each stack of calls as a pile of bars, the outermost function at the bottom (Gregg, *The Flame
//! Graph*, CACM 59(6), 2016). A bar's width is the number of instructions in its function and its callees. The result
//! is one SVG file without external parts. A browser opens it. A click on a bar widens the bar to the whole width, and
//! a click beside the bars shows everything again.

use std::{collections::BTreeMap, fmt::Write as _};

use quire_report::flame::{Bar, HUES, bars, crate_of, short};

/// The height of a bar, in pixels.
const HEIGHT: usize = 18;
/// The height above the bars.
const HEAD: usize = 58;
/// Narrower bars, by share of the whole, could not be seen or clicked. A million of them make a file that no browser
/// opens.
const LEAST: f64 = 0.0002;

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
    }

    #[test]
    fn nothing_at_all_is_a_drawing_too() {
        assert!(draw(&BTreeMap::new(), "nothing", "instructions").ends_with("</svg>\n"));
    }
}
