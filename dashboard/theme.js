// Light, dark, or as the system has it. Runs before the page is painted.
"use strict";

const THEMES = ["system", "light", "dark"];

function theme() {
  try {
    const kept = localStorage.getItem("penstock-theme");
    return THEMES.includes(kept) ? kept : "system";
  } catch {
    return "system"; // storage may be forbidden
  }
}

function useTheme(name) {
  if (name === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  try {
    localStorage.setItem("penstock-theme", name);
  } catch {
    // it holds for this page
  }
}

useTheme(theme());
document.addEventListener("DOMContentLoaded", () => {
  const select = document.getElementById("theme");
  select.value = document.documentElement.dataset.theme || "system";
  select.addEventListener("change", () => useTheme(select.value));
});
