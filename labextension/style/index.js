import './index.css';
import './sessions.css';
import './panels.css';
import './memory.css';
import './cards.css';
