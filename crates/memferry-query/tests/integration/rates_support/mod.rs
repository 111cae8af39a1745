//! A machine with known rates, so that the model can decide.

/// The profile of two tiers with made-up rates: the filter computes as fast as 8 GB/s a core, which leaves DRAM time for
/// copies by a device.
pub(crate) fn two_tiers_with_rates(device_mb_per_s: f64) -> String {
    let device = format!(
        r#""accelerators": {{"source": "made up", "value": [
            {{"name": "dsa0", "node": 0, "work_queues": null, "engines": null, "mb_per_s_max": {device_mb_per_s}}}]}}"#
    );
    let rate = |(name, mb_per_s)| {
        format!(r#"{{"name": "{name}", "value": {mb_per_s}, "basis": "assumed", "source": "for a test"}}"#)
    };
    let rates = [
        ("dram_mb_per_s", 40e3),
        ("hbm_mb_per_s", 200e3),
        ("core_mb_per_s", 100e3),
        ("core_copy_mb_per_s", 20e3),
        ("filter_mb_per_s", 8e3),
    ];
    let rates = format!(r#""parameters": [{}], "placeholders""#, rates.map(rate).join(", "));
    include_str!("../../../../memferry/machines/made-up-two-tiers.json")
        .replacen(r#""accelerators": null"#, &device, 1)
        .replacen(r#""placeholders""#, &rates, 1)
}
