import './index.css';
import './sessions.css';
import './stops.css';
import './panels.css';
import './memory.css';
import './cards.css';
import './graph.css';
